// The variants of choose. The workspace of sm80 must be zeroed once.
#include "ops/choose/choose.h"

namespace fathom::ops {

void choose_ref(const ChooseArgs& a, const Launch&);
void choose_cpu(const ChooseArgs& a, const Launch&);

#ifdef FATHOM_HAVE_CUDA
size_t choose_workspace(const ChooseArgs& a, const DeviceInfo& d);
void choose_sm80(const ChooseArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const ChooseArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.logits.size[1] > 0 &&
         a.logits.size[1] < int64_t{1} << 30 && a.logits.size[0] < 65536;
}

}  // namespace
#endif

Variants<ChooseArgs> choose_variants() {
  static constexpr Variant<ChooseArgs> all[] = {
      {"ref", Backend::cpu, always<ChooseArgs>, nullptr, choose_ref},
      {"cpu", Backend::cpu, always<ChooseArgs>, nullptr, choose_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, choose_workspace, choose_sm80},
#endif
  };
  return all;
}

}  // namespace fathom::ops
