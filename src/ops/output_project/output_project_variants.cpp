#include "ops/output_project/output_project.h"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&);

Variants<OutputProjectArgs> output_project_variants() {
  static constexpr Variant<OutputProjectArgs> all[] = {
      {"ref", Backend::cpu, always<OutputProjectArgs>, nullptr, output_project_ref},
  };
  return all;
}
}  // namespace fathom::ops
