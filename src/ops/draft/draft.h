// The pieces of drafts that are not ordinary blocks. Spec 2.8 (MTP), 2.9 (DSpark).
//
// stream_mean  one third of the draft features: mean of the four streams of a target layer's output, bf16
// stream_join  what the MTP block starts from: the projected embedding added to each projected stream, bf16
// markov       for each sequence: e = w1[token]; logits += w2 . e; confidence = proj . concat(hidden, e)
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct StreamMeanArgs {
  View<const bf16, 3> streams;  // [T, 4, d]
  View<bf16, 2> mean;           // out [T, d], rows may be strided (a part of the feature vector)
};

struct StreamJoinArgs {
  View<const bf16, 2> token;    // [T, d] the same for all streams of a token
  View<const bf16, 3> stream;   // [T, 4, d]
  View<const int32_t, 1> rows;  // [R] which of the T tokens
  View<bf16, 3> streams;        // out [R, 4, d]
};

struct MarkovArgs {
  View<const int32_t, 1> token;     // [B] the token before the one that is drafted
  View<const bf16, 2> w1, w2;       // [V, r]
  View<const bf16, 2> hidden;       // [B, d] pre-norm output of the draft's head at this position
  View<const bf16, 1> confidence;   // [d + r]
  View<float, 2> logits;            // in and out [B, V]
  View<float, 1> confidence_logit;  // out [B]; sigmoid gives P(accepted | all before accepted)
};

Variants<StreamMeanArgs> stream_mean_variants();
Variants<StreamJoinArgs> stream_join_variants();
Variants<MarkovArgs> markov_variants();

}  // namespace fathom::ops
