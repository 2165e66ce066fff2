#include "ops/head/head.h"

namespace fathom::ops {

void head_ref(const HeadArgs& a, const Launch&);

Variants<HeadArgs> head_variants() {
  static constexpr Variant<HeadArgs> all[] = {
      {"ref", Backend::cpu, always<HeadArgs>, nullptr, head_ref},
  };
  return all;
}
}  // namespace fathom::ops
