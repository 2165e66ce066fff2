#include "ops/exact.h"
#include "ops/quantize/quantize.h"

namespace fathom::ops {

void quantize_ref(const QuantizeArgs& a, const Launch&) {
  for (int64_t t = 0; t < a.x.size[0]; ++t) {
    auto row = exact::widen(a.x[t]);
    if (a.norm.data) exact::rmsnorm(row, a.norm, a.rms_eps);
    exact::act_quant(row, &a.codes(t, 0), &a.scale(t, 0));
  }
}

}  // namespace fathom::ops
