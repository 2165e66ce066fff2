// The boundary between two half blocks: hc_post of the one that ends, hc_pre of the one that begins, RMSNorm and fp8
// activation quantisation, in one op. Spec 2.2.
//
// post part (when `y` is given):
//   X'[k] = bf(post[k] * y + sum_j comb[j][k] * X[j])        the sum runs over the FIRST index of comb
// pre part (when `fn` is given), on X' or on X:
//   m = (fn . X) * rsqrt(mean(X^2) + rms_eps)                24 mixes over the 4*d values, factor after the product
//   pre[j] = sigmoid(m[j] * scale[0] + base[j]) + hc_eps;  post[j] = 2 sigmoid(m[4+j] * scale[1] + base[4+j])
//   comb = sinkhorn(softmax rows of m[8..23] * scale[2] + base[8..23]), columns normalised last
//   x = RMSNorm(bf(sum_j pre[j] X[j]), norm), and its act_quant per 128 channels
#pragma once

#include "ops/residual_mix/half_end.h"

namespace fathom::ops {

struct ResidualMixArgs {
  View<bf16, 3> streams;  // [T, 4, d] read; written when `y` is given

  /// [T, d / 32, 32] of a HalfEnd, whose op has ended the half (no y then); data == null: none. CUDA alone.
  View<const float, 3> sums;
  View<const bf16, 2> y;      // [T, d] output of the half that ends; data == null: no post part
  View<const float, 2> post;  // [T, 4] from the previous call
  View<const float, 3> comb;  // [T, 4, 4]

  View<const float, 2> fn;     // [24, 4 * d]; data == null: no pre part
  View<const float, 1> scale;  // [3]
  View<const float, 1> base;   // [24]
  View<const bf16, 1> norm;    // [d]
  int32_t sinkhorn_iterations = 20;
  float hc_eps = 1e-6f, rms_eps = 1e-6f;

  View<float, 2> next_post;  // out [T, 4]; may be the memory of `post`
  View<float, 3> next_comb;  // out [T, 4, 4]; may be the memory of `comb`
  View<bf16, 2> x;           // out [T, d]
  View<e4m3, 2> x_codes;     // out [T, d]
  View<e8m0, 2> x_scale;     // out [T, d / 128]
};

Variants<ResidualMixArgs> residual_mix_variants();

}  // namespace fathom::ops
