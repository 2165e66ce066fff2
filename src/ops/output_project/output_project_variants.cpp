#include "ops/output_project/output_project.h"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&);
void output_project_cpu(const OutputProjectArgs& a, const Launch& l);
bool output_project_cpu_can_run(const OutputProjectArgs& a, const DeviceInfo&);
size_t output_project_cpu_workspace(const OutputProjectArgs& a, const DeviceInfo&);

Variants<OutputProjectArgs> output_project_variants() {
  static constexpr Variant<OutputProjectArgs> all[] = {
      {"ref", Backend::cpu, always<OutputProjectArgs>, nullptr, output_project_ref},
      {"cpu", Backend::cpu, output_project_cpu_can_run, output_project_cpu_workspace, output_project_cpu},
  };
  return all;
}
}  // namespace fathom::ops
