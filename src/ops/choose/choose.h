// The likeliest token of each row of logits: greedy sampling where the logits are.
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct ChooseArgs {
  View<const float, 2> logits;  // [R, V]
  View<int32_t, 1> token;       // out [R]: id of the largest logit, the lowest among equals; -1: one is not finite
};

Variants<ChooseArgs> choose_variants();

}  // namespace fathom::ops
