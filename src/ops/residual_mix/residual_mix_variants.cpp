#include "ops/residual_mix/residual_mix.h"

namespace fathom::ops {

void residual_mix_ref(const ResidualMixArgs& a, const Launch&);

Variants<ResidualMixArgs> residual_mix_variants() {
  static constexpr Variant<ResidualMixArgs> all[] = {
      {"ref", Backend::cpu, always<ResidualMixArgs>, nullptr, residual_mix_ref},
  };
  return all;
}
}  // namespace fathom::ops
