// The next token of each row of logits: the largest, or one drawn by temperature, top-k, top-p and min-p.
//
// Probabilities are whole numbers in proportion (weight.h), so all variants draw the same token from the same logits.
// Order of the filters: top-k, top-p, min-p, each on what the one before left; then one draw. With filters the
// candidates stand best first (equal logits: the lower id), without them in the order of their ids.
#pragma once

#include "ops/op.h"

namespace fathom::ops {

/// How the token of one row is chosen.
struct RowSampling {
  float scale = 0;      // log2(e) / temperature; 0: the largest logit, the lowest id among equals
  int32_t top_k = 0;    // 0: off
  double top_p = 1;     // (0, 1]: fewest best tokens with at least this share of the probability
  double min_p = 0;     // [0, 1): no tokens below this share of the best one's probability
  uint64_t random = 0;  // 53 random bits

  constexpr bool filters() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

inline constexpr int32_t kRowNotFinite = -1;  // a logit is not finite
inline constexpr int32_t kRowNotDrawn = -2;   // the filters leave more candidates than the variant can hold

struct ChooseArgs {
  View<const float, 2> logits;          // [R, V]
  View<const RowSampling, 1> sampling;  // [R]; no data: the largest of each row
  View<int32_t, 1> token;               // out [R]: an id, kRowNotFinite or (CUDA only) kRowNotDrawn
};

Variants<ChooseArgs> choose_variants();

}  // namespace fathom::ops
