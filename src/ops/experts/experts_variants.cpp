#include "ops/experts/experts.h"

namespace fathom::ops {

void experts_ref(const ExpertsArgs& a, const Launch&);
void experts_cpu(const ExpertsArgs& a, const Launch& l);
bool experts_cpu_can_run(const ExpertsArgs& a, const DeviceInfo&);
size_t experts_cpu_workspace(const ExpertsArgs& a, const DeviceInfo&);

Variants<ExpertsArgs> experts_variants() {
  static constexpr Variant<ExpertsArgs> all[] = {
      {"ref", Backend::cpu, always<ExpertsArgs>, nullptr, experts_ref},
      {"cpu", Backend::cpu, experts_cpu_can_run, experts_cpu_workspace, experts_cpu},
  };
  return all;
}
}  // namespace fathom::ops
