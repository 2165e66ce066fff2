// The pieces of the DSpark draft that are not ordinary blocks. Spec 2.9.
//
// stream_mean  one third of the draft features: mean of the four streams of a target layer's output, bf16
// markov       for each sequence: e = w1[token]; logits += w2 . e; confidence = proj . concat(hidden, e)
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct StreamMeanArgs {
  View<const bf16, 3> streams;  // [T, 4, d]
  View<bf16, 2> mean;           // out [T, d], rows may be strided (a part of the feature vector)
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
Variants<MarkovArgs> markov_variants();

}  // namespace fathom::ops
