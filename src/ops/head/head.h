// From residual streams to logits: mix of the four streams, RMSNorm, fp32 product with the head matrix. Spec 2.7.
//
//   pre[j] = sigmoid((fn . X)[j] * rsqrt(mean(X^2) + rms_eps) * scale + base[j]) + hc_eps;  h = bf(sum_j pre[j] X[j])
//   logits = head . RMSNorm(h, norm)
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct HeadArgs {
  View<const bf16, 3> streams;  // [T, 4, d]
  View<const int32_t, 1> rows;  // [R] tokens whose logits are wanted
  View<const float, 2> fn;      // [4, 4 * d]
  View<const float, 1> scale;   // [1]
  View<const float, 1> base;    // [4]
  View<const bf16, 1> norm;     // [d]
  float hc_eps = 1e-6f, rms_eps = 1e-6f;
  View<const bf16, 2> weight;  // [V, d]
  View<bf16, 2> hidden;        // out [R, d] before the norm (the draft's confidence reads it)
  View<bf16, 2> normed;        // out [R, d] after the norm
  View<float, 2> logits;       // out [R, V]
};

Variants<HeadArgs> head_variants();

}  // namespace fathom::ops
