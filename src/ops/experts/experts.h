// Routed experts and the shared expert of one layer. Spec 2.6.
//
//   a = min(w1 x, limit); b = clamp(w3 x, -limit, limit); h = bf(weight * (silu(a) * b)); y_e = w2 act_quant(h), bf16
//   y = bf(sum of y_e in ascending expert id, fp32, then + shared(x))       the shared expert has no weight, same clamp
// A rank of a tensor-parallel model has a part of every expert's width I, or some of the experts: ids of others take
// part in nothing. It wants the sum as it is, in fp32; with a part of the width each y_e is rounded on each rank.
// Products of fp4 weights accumulate per 32 columns with the activation scale of their 128.
#pragma once

#include "ops/op.h"
#include "ops/residual_mix/half_end.h"
#include "ops/weights.h"

namespace fathom::ops {

struct ExpertsArgs {
  View<const e4m3, 2> x;           // [T, d]
  View<const e8m0, 2> x_scale;     // [T, d / 128]
  View<const int32_t, 2> expert;   // [T, k] ascending
  View<const float, 2> weight;     // [T, k]
  int32_t experts = 0;             // E: how many experts w1, w2, w3 hold
  int32_t first_expert = 0;        // id of the first of them
  ExpertWeight w1, w3;             // [I, d]
  ExpertWeight w2;                 // [d, I]
  Fp8Weight shared_w1, shared_w3;  // [Is, d]; codes.data == null: no shared expert
  Fp8Weight shared_w2;             // [d, Is]
  float limit = 10;
  /// Promise that the launch before this one writes neither x nor x_scale and that nothing but it may still be running
  /// that uses the same workspace: what needs no choice may then begin while it runs.
  bool x_is_old = false;
  View<bf16, 2> y;     // out [T, d]
  View<float, 2> sum;  // out [T, d] in place of y, not rounded; no data: y
  /// The half that y ends, where the variant can end it.
  HalfEnd end;
};

Variants<ExpertsArgs> experts_variants();

}  // namespace fathom::ops
