// Matrix products y[T, N] = x[T, K] . w[N, K]^T of the three kinds the model has. Spec 2.0. Accumulation is fp32 or
// better; a row of y depends on its row of x alone and has the same bits whatever T is (but for variants "..._fast").
//   linear_fp8   block-scaled: sum over K blocks of 128 of (dot of codes) * (x_scale * w_scale), bf16 out
//   linear_bf16  bf16 in and out; with factor != 1 the bf16 result is multiplied and rounded once more
//   linear_f32   bf16 operands, fp32 out, no rounding in between (gate, compressor, head)
// Weights that share an input run as one call.
#pragma once

#include "ops/op.h"
#include "ops/weights.h"

namespace fathom::ops {

inline constexpr int kMaxParts = 4;

struct LinearFp8Args {
  struct Part {
    Fp8Weight w;
    View<bf16, 2> y;  // out [T, N]
  };
  View<const e4m3, 2> x;        // [T, K], K a multiple of 128
  View<const e8m0, 2> x_scale;  // [T, K / 128]
  Part part[kMaxParts];
  int32_t parts = 0;
};

struct LinearBf16Args {
  View<const bf16, 2> x;  // [T, K]
  View<const bf16, 2> w;  // [N, K]
  float factor = 1;
  View<bf16, 2> y;  // out [T, N]
};

struct LinearF32Args {
  struct Part {
    View<const bf16, 2> w;  // [N, K]
    View<float, 2> y;       // out [T, N]
  };
  View<const bf16, 2> x;  // [T, K]
  Part part[kMaxParts];
  int32_t parts = 0;
};

Variants<LinearFp8Args> linear_fp8_variants();
Variants<LinearBf16Args> linear_bf16_variants();
Variants<LinearF32Args> linear_f32_variants();

}  // namespace fathom::ops
