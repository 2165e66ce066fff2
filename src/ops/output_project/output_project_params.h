// What the CUDA kernel of wo_a is launched with, and its plan.
#pragma once

#include <algorithm>

#include "ops/experts/moe_params.h"
#include "ops/output_project/output_project.h"

namespace fathom::ops::output_projection {

inline constexpr int kHeadDim = 512, kMostSlices = 4;
inline constexpr int64_t kMostSplitTokens = 128;

struct Plan {
  int tiles = 1;  // of 8 tokens: 1, 2, 8
  int log2_slices = 0, log2_sets = 0;
  bool split = false;         // with 64 tokens: each slice by a block of its own
  int width = 0, height = 0;  // of the grid
  size_t shared_bytes = 0;

  /// With most tokens a warp takes all slices or those of its block, otherwise one.
  int threads() const { return 32 << ((tiles == 8 ? 0 : log2_slices) + log2_sets); }
};

struct Params {
  moe::Weight w;
  const std::byte* o = nullptr;
  bf16* z = nullptr;
  e4m3* codes = nullptr;
  e8m0* scale = nullptr;
  float* partial = nullptr;                 // [tiles of tokens][blocks of rows][slices][kBlockSums], with `split`
  uint32_t* arrivals = nullptr;             // [tiles of tokens, rows / 128]
  int64_t head_bytes = 0, token_bytes = 0;  // of o
  int64_t z_stride = 0, codes_stride = 0, scale_stride = 0;  // elements
  int32_t tokens = 0, rank = 0, group_heads = 0;
  int32_t log2_slices = 0, log2_sets = 0;
  bool split = false;
};

/// Slices of a row depend on the weight alone: as many as give 2,000 warps. So do the bits of a token.
inline Plan make_plan(const OutputProjectArgs& a) {
  Plan p;
  const int64_t rows = a.wo_a.codes.size[0], blocks = a.wo_a.codes.size[1] / moe::kBlock, tokens = a.o.size[0];
  while (2 << p.log2_slices <= std::min<int64_t>(kMostSlices, blocks) && rows / 32 << p.log2_slices < 2000)
    ++p.log2_slices;
  p.tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : 8;
  p.split = p.tiles == 8 && tokens <= kMostSplitTokens && p.log2_slices > 0;
  p.log2_sets = p.tiles < 8 ? 0 : p.split || rows / a.groups % 256 != 0 ? 2 : 3;
  p.width = static_cast<int>(rows >> (5 + p.log2_sets));
  p.height = static_cast<int>((tokens + 8 * p.tiles - 1) / (8 * p.tiles));
  p.shared_bytes = static_cast<size_t>(p.threads() / 32 * 2 * 8 * p.tiles) * (moe::kGroupRows + 4) * sizeof(float);
  p.shared_bytes =
      std::max<size_t>(p.shared_bytes, p.tiles == 8 ? moe::kRingBytes : p.threads() / 32 * moe::kWeightRing);
  return p;
}

/// Floats of partial sums that a block leaves to the last block of its rows.
inline constexpr int kBlockSums = 4 * 2 * 64 * (moe::kGroupRows + 4);

/// The counters have the same place and size for every number of tokens: a launch with other shapes must not find
/// partial sums there. Blocks meet where there are at most two tiles of tokens.
inline constexpr int64_t kMostRows = int64_t{1} << 20;
inline constexpr size_t kCounterBytes = 2 * (kMostRows / moe::kBlock) * sizeof(uint32_t);

/// The same for any number of tokens: a step of so many as blocks meet for must not have to make memory that one of
/// more did without.
inline size_t workspace_bytes(OutputProjectArgs a) {
  a.o.size[0] = kMostSplitTokens;
  const Plan p = make_plan(a);
  const size_t blocks = static_cast<size_t>(p.width * p.height) << p.log2_slices;
  return kCounterBytes + (p.split ? blocks * kBlockSums * sizeof(float) : 0);
}

inline Params pack(const OutputProjectArgs& a, const Plan& plan, void* workspace) {
  Params p;
  p.w.codes = reinterpret_cast<const std::byte*>(a.wo_a.codes.data);
  p.w.scale = reinterpret_cast<const uint8_t*>(a.wo_a.scale.data);
  p.w.row_bytes = static_cast<int32_t>(a.wo_a.codes.stride[0]);
  p.w.scale_row = static_cast<int32_t>(a.wo_a.scale.stride[0]);
  p.w.rows = static_cast<int32_t>(a.wo_a.codes.size[0]);
  p.w.blocks = static_cast<int32_t>(a.wo_a.codes.size[1] / moe::kBlock);
  p.o = reinterpret_cast<const std::byte*>(a.o.data), p.token_bytes = 2 * a.o.stride[0],
  p.head_bytes = 2 * a.o.stride[1];
  p.z = a.z.data, p.codes = a.z_codes.data, p.scale = a.z_scale.data;
  p.z_stride = a.z.stride[0], p.codes_stride = a.z_codes.stride[0], p.scale_stride = a.z_scale.stride[0];
  p.tokens = static_cast<int32_t>(a.o.size[0]);
  p.rank = static_cast<int32_t>(a.wo_a.codes.size[0] / a.groups);
  p.group_heads = static_cast<int32_t>(a.o.size[1] / a.groups);
  p.log2_slices = plan.log2_slices, p.log2_sets = plan.log2_sets;
  p.split = plan.split, p.arrivals = static_cast<uint32_t*>(workspace);
  if (plan.split) p.partial = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + kCounterBytes);
  return p;
}

}  // namespace fathom::ops::output_projection
