#include "ops/residual_mix/residual_mix.h"

namespace fathom::ops {

void residual_mix_ref(const ResidualMixArgs& a, const Launch&);
void residual_mix_cpu(const ResidualMixArgs& a, const Launch& l);
bool residual_mix_cpu_can_run(const ResidualMixArgs& a, const DeviceInfo&);

Variants<ResidualMixArgs> residual_mix_variants() {
  static constexpr Variant<ResidualMixArgs> all[] = {
      {"ref", Backend::cpu, always<ResidualMixArgs>, nullptr, residual_mix_ref},
      {"cpu", Backend::cpu, residual_mix_cpu_can_run, nullptr, residual_mix_cpu},
  };
  return all;
}
}  // namespace fathom::ops
