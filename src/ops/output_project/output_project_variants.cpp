#include "ops/output_project/output_project.h"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&);
void output_project_cpu(const OutputProjectArgs& a, const Launch& l);
bool output_project_cpu_can_run(const OutputProjectArgs& a, const DeviceInfo&);
size_t output_project_cpu_workspace(const OutputProjectArgs& a, const DeviceInfo&);

#ifdef FATHOM_HAVE_CUDA
bool output_project_sm80_can_run(const OutputProjectArgs& a, const DeviceInfo&);
void output_project_sm80(const OutputProjectArgs& a, const Launch& l);
bool output_project_sm90_can_run(const OutputProjectArgs& a, const DeviceInfo&);
void output_project_sm90(const OutputProjectArgs& a, const Launch& l);
size_t output_project_sm80_workspace(const OutputProjectArgs& a, const DeviceInfo&);
size_t output_project_sm90_workspace(const OutputProjectArgs& a, const DeviceInfo& d);
#endif

Variants<OutputProjectArgs> output_project_variants() {
  static constexpr Variant<OutputProjectArgs> all[] = {
      {"ref", Backend::cpu, always<OutputProjectArgs>, nullptr, output_project_ref},
      {"cpu", Backend::cpu, output_project_cpu_can_run, output_project_cpu_workspace, output_project_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, output_project_sm80_can_run, output_project_sm80_workspace, output_project_sm80},
      {"sm90", Backend::cuda, output_project_sm90_can_run, output_project_sm90_workspace, output_project_sm90},
#endif
  };
  return all;
}
}  // namespace fathom::ops
