// Softmax-weighted sums over a few tokens, separately for each channel.
#pragma once

#include <cstdint>

namespace fathom::ops::cpu {

struct PoolSample {
  const float* k;    // values
  const float* g;    // scores
  const float* ape;  // added to the scores; null: nothing
};

/// out[c] = bf(sum_s softmax_s(g[c] + ape[c]) * k[c]) for `width` channels, a multiple of 16.
void pool(const PoolSample* samples, int64_t count, int64_t width, float* out);

}  // namespace fathom::ops::cpu
