#include "ops/experts/experts.h"

namespace fathom::ops {

void experts_ref(const ExpertsArgs& a, const Launch&);

Variants<ExpertsArgs> experts_variants() {
  static constexpr Variant<ExpertsArgs> all[] = {
      {"ref", Backend::cpu, always<ExpertsArgs>, nullptr, experts_ref},
  };
  return all;
}
}  // namespace fathom::ops
