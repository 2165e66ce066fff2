#include "ops/quantize/quantize.h"

namespace fathom::ops {

void quantize_ref(const QuantizeArgs& a, const Launch&);

Variants<QuantizeArgs> quantize_variants() {
  static constexpr Variant<QuantizeArgs> all[] = {
      {"ref", Backend::cpu, always<QuantizeArgs>, nullptr, quantize_ref},
  };
  return all;
}
}  // namespace fathom::ops
