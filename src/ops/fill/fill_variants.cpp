// The variants of fill, and the call that picks one.
#include "ops/compute_device.h"
#include "ops/fill/fill.h"

namespace fathom::ops {

void fill_ref(const FillArgs& a, const Launch&);
void fill_cpu(const FillArgs& a, const Launch&);

#ifdef FATHOM_HAVE_CUDA
void fill_sm80(const FillArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const FillArgs&, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80;
}

}  // namespace
#endif

Variants<FillArgs> fill_variants() {
  static constexpr Variant<FillArgs> all[] = {
      {"ref", Backend::cpu, always<FillArgs>, nullptr, fill_ref},
      {"cpu", Backend::cpu, always<FillArgs>, nullptr, fill_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, nullptr, fill_sm80},
#endif
  };
  return all;
}

void fill(const FillArgs& args, ComputeDevice& device) {
  if (device.only_counts()) return;
  const bool host = device.info().backend == Backend::cpu;
  find_variant(fill_variants(), host ? "cpu" : "sm80")->run(args, {device.info(), nullptr, device.stream()});
}

}  // namespace fathom::ops
