// First half of the attention output: heads in groups, each group through its block of wo_a, then act_quant for wo_b
// (a linear_fp8). Spec 2.3. Activations stay bf16 and the weight is exact in bf16, as in the official code.
#pragma once

#include "ops/op.h"
#include "ops/weights.h"

namespace fathom::ops {

struct OutputProjectArgs {
  View<const bf16, 3> o;  // [T, H, 512] after inverse RoPE
  int32_t groups = 8;     // H / groups heads each
  Fp8Weight wo_a;         // [groups * rank, H / groups * 512]; rows g*rank.. belong to group g
  View<bf16, 2> z;        // out [T, groups * rank]
  View<e4m3, 2> z_codes;  // out [T, groups * rank]
  View<e8m0, 2> z_scale;  // out [T, groups * rank / 128]
};

Variants<OutputProjectArgs> output_project_variants();

}  // namespace fathom::ops
