#include "ops/quantize/quantize.h"

namespace fathom::ops {

void quantize_ref(const QuantizeArgs& a, const Launch&);
void quantize_cpu(const QuantizeArgs& a, const Launch& l);

Variants<QuantizeArgs> quantize_variants() {
  static constexpr Variant<QuantizeArgs> all[] = {
      {"ref", Backend::cpu, always<QuantizeArgs>, nullptr, quantize_ref},
      {"cpu", Backend::cpu, always<QuantizeArgs>, nullptr, quantize_cpu},
  };
  return all;
}
}  // namespace fathom::ops
