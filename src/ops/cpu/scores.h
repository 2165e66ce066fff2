// Scores of the router and of the indexer.
#pragma once

#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops::cpu {

/// out = sqrt(softplus(g)), softplus being the identity above 20. Reads g up to a multiple of 16.
void gate_scores(const float* g, int64_t n, float* out);

/// Index scores of n entries: bf(sum_h bf(relu(bf(dot[h, i])) * weight[h])), dot rows `pitch` apart and readable up to
/// a multiple of 16. Written as 16-bit keys that sort like the scores (+0 and -0 are equal).
void index_scores(const float* dot, int64_t pitch, const bf16* weight, int64_t heads, int64_t n, uint16_t* key);

/// The smallest of the k largest of n >= k keys, and how many of the keys equal to it belong to them.
struct KeyLimit {
  uint32_t key;
  int64_t equal;
};
KeyLimit key_limit(const uint16_t* key, int64_t n, int64_t k);

}  // namespace fathom::ops::cpu
