// How wo_a and wo_b share a launch (outputs_kernel.cuh): what the kernel gets, and where it can run.
#pragma once

#include "ops/experts/moe_params.h"
#include "ops/residual_mix/end_params.h"
#include "ops/together/together.h"

namespace fathom::ops::together {

/// Blocks have 32 rows of wo_b and 16, 32, ... rows of wo_a; each of the warps has 16 rows and one slice of either.
inline constexpr int kOutputWarps = 16, kOutputRows = 32, kMostOutputTokens = 4;
inline constexpr int kScaledTokens = 8;  // scales of activations: [block of 128 columns][kScaledTokens]

struct OutputParams {
  moe::Weight a, b;  // wo_a, wo_b
  const std::byte* o = nullptr;
  int64_t head_bytes = 0, token_bytes = 0;  // of o
  bf16 *z = nullptr, *y = nullptr;
  int64_t z_stride = 0, y_stride = 0;  // elements
  moe::Gate* gate = nullptr;
  mix::End end;
  moe::FewLayout layout;  // rings, activations (rows), then sums
  int32_t scales = 0;     // of activations, in shared memory
  int32_t x_pitch = 0, z_pitch = 0;
  int32_t tokens = 0, rank = 0, group_heads = 0, blocks = 0;
  int32_t log2_tiles = 0;  // of 16 rows of wo_a in a block
  bool fits = false;
};

/// `fits` is false where the kernel cannot run or not all blocks would be there at once.
OutputParams lay_out(const OutputProductsArgs& a, const DeviceInfo& device);

}  // namespace fathom::ops::together
