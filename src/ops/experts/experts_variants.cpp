// The variants of experts. The workspace of those on a GPU must be zeroed once and then belong to this op and one
// stream.
#include "ops/experts/experts.h"

namespace fathom::ops {

void experts_ref(const ExpertsArgs& a, const Launch&);

namespace {
bool ref_can_run(const ExpertsArgs& a, const DeviceInfo&) {
  return !a.end.streams.data;
}
}  // namespace

void experts_cpu(const ExpertsArgs& a, const Launch& l);
bool experts_cpu_can_run(const ExpertsArgs& a, const DeviceInfo&);
size_t experts_cpu_workspace(const ExpertsArgs& a, const DeviceInfo&);
#ifdef FATHOM_HAVE_CUDA
bool experts_sm80_can_run(const ExpertsArgs& a, const DeviceInfo&);
bool experts_sm90_can_run(const ExpertsArgs& a, const DeviceInfo&);
bool experts_sm90_fast_can_run(const ExpertsArgs& a, const DeviceInfo&);
size_t experts_cuda_workspace(const ExpertsArgs& a, const DeviceInfo&);
void experts_sm80(const ExpertsArgs& a, const Launch& l);
void experts_sm90(const ExpertsArgs& a, const Launch& l);
void experts_sm90_fast(const ExpertsArgs& a, const Launch& l);
#endif

Variants<ExpertsArgs> experts_variants() {
  static constexpr Variant<ExpertsArgs> all[] = {
      {"ref", Backend::cpu, ref_can_run, nullptr, experts_ref},
      {"cpu", Backend::cpu, experts_cpu_can_run, experts_cpu_workspace, experts_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, experts_sm80_can_run, experts_cuda_workspace, experts_sm80},
      {"sm90", Backend::cuda, experts_sm90_can_run, experts_cuda_workspace, experts_sm90},
      {"sm90_fast", Backend::cuda, experts_sm90_fast_can_run, experts_cuda_workspace, experts_sm90_fast},
#endif
  };
  return all;
}
}  // namespace fathom::ops
