// The variants of choose. On the processor the reference is the only one: the sampler reads the logits there anyway.
#include "ops/choose/choose.h"

namespace fathom::ops {

void choose_ref(const ChooseArgs& a, const Launch&);

#ifdef FATHOM_HAVE_CUDA
void choose_sm80(const ChooseArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const ChooseArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.logits.size[1] > 0 &&
         a.logits.size[1] < int64_t{1} << 30;
}

}  // namespace
#endif

Variants<ChooseArgs> choose_variants() {
  static constexpr Variant<ChooseArgs> all[] = {
      {"ref", Backend::cpu, always<ChooseArgs>, nullptr, choose_ref},
      {"cpu", Backend::cpu, always<ChooseArgs>, nullptr, choose_ref},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, nullptr, choose_sm80},
#endif
  };
  return all;
}

}  // namespace fathom::ops
