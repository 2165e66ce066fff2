// Work on the four residual streams of a token on the CPU, shared by the residual mix and the head.
#pragma once

#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops::cpu {

/// X'[k] = bf(post[k] * y + sum_j comb[4 j + k] * X[j]) in place, x[k] the rows of d channels, d a multiple of 16.
void post_streams(bf16* const* x, const bf16* y, const float* post, const float* comb, int64_t d);

/// out = bf(sum_j pre[j] * X[j]) of the concatenated fp32 streams f, as fp32.
void mix_streams(const float* f, const float* pre, int64_t d, float* out);

/// out = sigmoid(m * scale + base) * factor + eps, n values.
void sigmoid_gates(const float* m, float scale, const float* base, float factor, float eps, int64_t n, float* out);

/// Doubly stochastic 4x4 matrices of up to 16 tokens: softmax over rows of m * scale + base, then rows and columns
/// normalised in turn, columns last. m and comb hold the 16 values of token t at t * pitch.
struct SinkhornArgs {
  const float* mixes;
  int64_t mixes_pitch;
  float scale;
  const float* base;  // [16]
  int32_t iterations;
  float eps;
  float* comb;
  int64_t comb_pitch;
  int64_t tokens;
};
void sinkhorn(const SinkhornArgs& a);

}  // namespace fathom::ops::cpu
