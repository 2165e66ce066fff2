// Query heads: per-head RMS normalisation without weight, then RoPE of the last 64 channels, in place. Spec 2.3.
//
// The official code takes the normalisation in bf16 steps (square, mean, rsqrt and product each rounded), and the model
// was trained with it; fp32 inside is the other allowed reading (docs/decisions/0001-query-norm.md).
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct QueryArgs {
  View<bf16, 3> q;                  // [T, H, 512] in and out
  View<const int32_t, 1> position;  // [T]
  View<const float, 1> rope_freq;   // [32]
  float rms_eps = 1e-6f;
  bool bf16_steps = true;
};

Variants<QueryArgs> query_variants();

}  // namespace fathom::ops
