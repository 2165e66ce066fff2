// What the small-T product kernel is launched with, and how its plan divides the work.
//
// y[T, N] = x[T, K] . w[N, K]^T. Rows of weights go in groups of 16 (one tensor core tile), the bytes of a row in
// units of 128 (one scale block of fp8, 64 values of bf16). The units of a row are divided into `slices`, a power of
// two that depends on N and K alone; a slice is summed by one warp unit after unit, the slices are added in order. So
// a row of y has the same bits whatever T is, although tokens choose how slices are spread over warps and blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/linear/linear.h"
#include "ops/linear/slices.h"

namespace fathom::ops::gemm {

inline constexpr int kGroupRows = 16, kUnitBytes = 128, kMaxWarps = 16, kMaxSlices = 16, kMaxCluster = 8;

enum class Math {
  e4m3,       // e4m3 x e4m3 on fp8 tensor cores (sm_89 and later)
  e4m3_f16,   // e4m3 x e4m3, both widened to fp16, which is exact: fp32 sums as accurate as those of bf16
  bf16,       // bf16 x bf16
  e4m3_wide,  // as e4m3_f16, by warpgroups (sm_90a)
  bf16_wide,  // as bf16, by warpgroups
};
constexpr bool has_scales(Math m) {
  return m != Math::bf16 && m != Math::bf16_wide;
}
constexpr bool is_wide(Math m) {
  return m == Math::e4m3_wide || m == Math::bf16_wide;
}
/// Bytes that a byte of x takes in shared memory.
constexpr int widening(Math m) {
  return m == Math::e4m3_f16 || m == Math::e4m3_wide ? 2 : 1;
}
/// Units of weights a warp keeps in flight.
constexpr int depth(Math m, int tiles) {
  if (tiles == 2 || (tiles == 1 && m == Math::e4m3_f16)) return 2;
  return tiles != 4 && m == Math::e4m3 ? 3 : 4;
}
/// x comes in multiples of so many units, unless it comes at once.
constexpr int chunk_step(Math m, int tiles) {
  return is_wide(m) ? 1 : depth(m, tiles);
}
/// Many tokens want more registers than 16 warps have.
constexpr int most_warps(Math m, int tiles) {
  return is_wide(m) || tiles <= 2 ? kMaxWarps : kMaxWarps / 2;
}
/// Warps that take neighbouring groups of one slice.
constexpr int least_group_warps(Math m) {
  return is_wide(m) ? 4 : 1;
}

struct Plan {
  int log2_slices = 0;  // of a row
  int cluster = 1;      // blocks that share a row tile, each with slices / cluster slices
  int slice_warps = 1;  // slices / cluster
  int group_warps = 1;  // groups of a block; it has slice_warps * group_warps warps
  int tiles = 1;        // of 8 tokens in a block: 1, 2, 4, 8
  int chunk_units = 1;  // units of each slice for which x lies in shared memory at a time
  int ahead = 2;        // by warpgroups: units that a warp has under way
  int stages = 3;       // and those that its ring holds: one more, or all of its slice
  size_t shared_bytes = 0;
  bool early = false;  // starts while the previous kernel of the stream ends; weights are read before that one is done

  int slices() const { return 1 << log2_slices; }
  int token_tile() const { return 8 * tiles; }
  int threads() const { return 32 * slice_warps * group_warps; }
};

struct Part {
  const std::byte* w = nullptr;
  const uint8_t* scale = nullptr;
  void* y = nullptr;
  int64_t w_stride = 0, scale_stride = 0;  // bytes
  int64_t y_stride = 0;                    // elements
  int32_t rows = 0, first_group = 0;
  bool aligned = false;  // four outputs can be stored at once
};

struct Params {
  Part part[4];
  const std::byte* x = nullptr;
  const uint8_t* x_scale = nullptr;
  int64_t x_stride = 0, x_scale_stride = 0;  // bytes
  int32_t parts = 0, groups = 0, tokens = 0;
  int32_t row_bytes = 0, units = 0;
  int32_t log2_slices = 0, cluster = 1, log2_slice_warps = 0, log2_group_warps = 0;
  int32_t chunk_units = 1, token_bits = 0;  // a token tile has at most 2^token_bits tokens
  int32_t ahead = 2, stages = 3;
  float factor = 1;
  bool fp32_out = false;

  FATHOM_HOST_DEVICE int slice_warps() const { return 1 << log2_slice_warps; }
  FATHOM_HOST_DEVICE int group_warps() const { return 1 << log2_group_warps; }
};

/// Units of a warp under way at once.
inline constexpr int kLeastAhead = 2, kMostAhead = 4;
/// Bytes of shared memory of a block that stages `chunk_units` units of x at a time, as the kernels lay it out.
size_t shared_for(Math math, const Plan& p, int chunk_units);

/// `clusters`: whether blocks may form clusters. Depends on static shapes and the device alone; `slices` on neither
/// the device nor `tokens`. `log2_slices`: those of another kernel whose bits are wanted.
Plan make_plan(Math math, int groups, int units, int64_t tokens, const DeviceInfo& device, bool clusters,
               std::optional<int> log2_slices = {});

/// Copies the plan into the parameters.
void set_plan(Params& p, const Plan& plan);

Params pack(const LinearFp8Args& a);
Params pack(const LinearBf16Args& a);
Params pack(const LinearF32Args& a);

/// Launches; throws Error when CUDA refuses. `stream` is a cudaStream_t.
void launch_e4m3(const Params& p, const Plan& plan, void* stream);
void launch_e4m3_wide(const Params& p, const Plan& plan, void* stream);
void launch_bf16_wide(const Params& p, const Plan& plan, void* stream);
void launch_e4m3_f16(const Params& p, const Plan& plan, void* stream);
void launch_bf16(const Params& p, const Plan& plan, void* stream);

[[noreturn]] void launch_failed(const char* what, const char* why);

}  // namespace fathom::ops::gemm
