// act_quant: bf16 rows -> e4m3 codes and e8m0 scales, per 128 channels; optionally after an RMSNorm. Spec 2.0.
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct QuantizeArgs {
  View<const bf16, 2> x;     // [T, K], K a multiple of 128
  View<const bf16, 1> norm;  // [K] RMSNorm weight; data == null: quantise x as it is
  float rms_eps = 1e-6f;
  View<e4m3, 2> codes;  // out [T, K]
  View<e8m0, 2> scale;  // out [T, K / 128]
};

Variants<QuantizeArgs> quantize_variants();

}  // namespace fathom::ops
