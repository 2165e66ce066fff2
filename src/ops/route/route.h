// The router: scores of all experts, the k experts of each token and their weights. Spec 2.6.
//
//   s = sqrt(softplus(gate . x)) in fp32;  chosen = table[id] (hash layers) or the k largest s + bias (ties: lower id)
//   weight = s / (sum of the chosen s) * route_scale         the bias never enters a weight
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct RouteArgs {
  View<const bf16, 2> x;         // [T, d]
  View<const bf16, 2> gate;      // [E, d]
  View<const float, 1> bias;     // [E]; data == null: hash layer
  View<const int32_t, 2> table;  // [V, k] expert ids, distinct; hash layers only
  View<const int32_t, 1> ids;    // [T] token ids; hash layers only
  float route_scale = 1;
  View<float, 2> scores;    // scratch [T, E]; holds s afterwards
  View<int32_t, 2> expert;  // out [T, k] ascending
  View<float, 2> weight;    // out [T, k]
};

Variants<RouteArgs> route_variants();

}  // namespace fathom::ops
