// What the streaming product kernel (stream_kernel.cuh, sm_90a) is launched with, and its plan.
//
// y[T, N] = x[T, K] . w[N, K]^T with weights in e4m3, one scale for 128 rows x 128 columns. A block has a tile of 128
// rows and one slice of K; the blocks of a tile's slices form a cluster. Slices depend on N and K alone and are added
// in order, so a row of y has the same bits whatever T is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/device/tensor_map.h"
#include "ops/linear/linear.h"
#include "ops/linear/slices.h"

namespace fathom::ops::stream {

inline constexpr int kTileRows = 128, kUnitColumns = 128, kWarpRows = 16, kMaxSlices = 8;
inline constexpr int kConsumers = kTileRows / kWarpRows;      // warps
inline constexpr int kStageBytes = kWarpRows * kUnitColumns;  // of a warp's ring: one box
inline constexpr int kMostStages = 4, kMostXStages = 4;
inline constexpr int kRowFloats = kTileRows + 4;  // of a token's sums in shared memory

/// What x is made of.
enum class Input {
  e4m3,  // codes with a scale for each token and 128 columns: products of fp16, which is exact; blocks scaled in fp32
  bf16,  // products of bf16, weights with their scale; the last dimension of x may lie in pieces of 512 (heads)
};
/// Warps that bring x: two units at a time, with 64 tokens half of the tokens each.
constexpr int producers(int tiles) {
  return tiles == 8 ? 4 : 2;
}
constexpr int threads(int tiles) {
  return 32 * (kConsumers + producers(tiles));
}
/// Units of x that a producer has under way.
inline constexpr int kInputStages = 2;

struct Plan {
  int log2_slices = 0;
  /// Blocks with 64 rows, whose two warpgroups have a slice each: half as many blocks in a cluster, twice as many
  /// tiles.
  bool paired = false;
  int tiles = 1;  // of 8 tokens in a block: 1, 2, 4, 8
  int stages = 2, x_stages = 2;
  int row_tiles = 0, token_tiles = 0;
  size_t shared_bytes = 0;

  int slices() const { return 1 << log2_slices; }
  int cluster() const { return slices() >> (paired ? 1 : 0); }
  int grid_tiles() const { return row_tiles << (paired ? 1 : 0); }
};

/// `run.operator()<kTiles>()` for a plan's tiles.
template <typename Run>
void with_tiles(const Plan& plan, const Run& run) {
  if (plan.tiles == 1) return run.template operator()<1>();
  if (plan.tiles == 2) return run.template operator()<2>();
  if (plan.tiles == 4) return run.template operator()<4>();
  run.template operator()<8>();
}

struct Part {
  const uint8_t* scale = nullptr;
  bf16* y = nullptr;
  int64_t scale_stride = 0, y_stride = 0;
  int32_t rows = 0, first_tile = 0;
  bool aligned = false;  // four outputs can be stored at once
};

struct Params {
  Part part[kMaxParts];
  const uint8_t* x_scale = nullptr;
  int64_t x_scale_stride = 0;               // bytes
  int32_t group_rows = 0, group_heads = 0;  // bf16: rows and heads of a group
  int32_t parts = 0, tokens = 0, units = 0;
  int32_t log2_slices = 0, stages = 2, x_stages = 2;
  bool paired = false;
};

/// x, and the weights of each part.
struct Maps {
  device::TensorMap x, w[kMaxParts];
};

/// Parameters, and where the weights lie.
struct Work {
  Params params;
  device::Planes x = {}, weights[kMaxParts] = {};
  int row_tiles = 0;
};
Work pack(const LinearFp8Args& a);

/// `describe` makes a map of Planes.
template <typename Describe>
Maps describe_weights(const Work& work, const Describe& describe) {
  Maps maps = {describe(work.x), {}};
  for (int32_t i = 0; i < work.params.parts; ++i) maps.w[i] = describe(work.weights[i]);
  return maps;
}

/// Launches; throws Error when CUDA refuses. `stream` is a cudaStream_t.
void launch_linear(const Params& p, const Maps& maps, const Plan& plan, void* stream);

constexpr int tokens_of(int tiles) {
  return 8 * tiles;
}
/// Of x as it is multiplied: 128 columns of 16 bits.
constexpr int x_stage_bytes(int tiles) {
  return tokens_of(tiles) * 2 * kUnitColumns;
}
/// A producer's part of a unit of x as it comes: boxes of 16 tokens.
constexpr int input_bytes(Input i, int tiles) {
  return (tiles < 2 ? 16 : 2 * tokens_of(tiles) / producers(tiles)) * kUnitColumns * (i == Input::e4m3 ? 1 : 2);
}

/// Barriers, and scales of x times those of weights.
inline constexpr size_t kHeader = 1024;
static_assert(kHeader >= (kConsumers * kMostStages + 2 * kMostXStages + 4 * kInputStages + 1) * 8 + 512);

inline size_t shared_for(Input input, const Plan& p) {
  const size_t staged = static_cast<size_t>(p.x_stages) * x_stage_bytes(p.tiles) +
                        static_cast<size_t>(producers(p.tiles) * kInputStages) * input_bytes(input, p.tiles) +
                        static_cast<size_t>(p.stages * kConsumers) * kStageBytes;
  // Sums of this block, then its share of those of the cluster.
  const int share = (tokens_of(p.tiles) + p.cluster() - 1) / p.cluster();
  const int rows = tokens_of(p.tiles) + (p.cluster() > 1 ? share * p.cluster() : 0);
  return kHeader + std::max(staged, static_cast<size_t>(rows * kRowFloats) * sizeof(float));
}

/// Blocks that keep memory busy. A constant: results must not depend on the device.
inline constexpr int kBlocksWanted = 90;
/// Clusters of 4 and of 8 that surely run at once.
inline constexpr int kClustersOf4 = 30, kClustersOf8 = 15;

/// Stages as measured to be fastest: deeper rings gain nothing and leave less room for the blocks of the next kernel.
inline void fit(Input input, Plan& p, int units) {
  const int longest = (units + p.slices() - 1) >> p.log2_slices;
  const bool few = p.tiles == 1 || (p.tiles < 8 && !p.paired);
  p.x_stages = p.paired ? std::min(2 * longest, few ? 2 : kMostXStages) : std::min(longest, 2);
  p.stages = std::min(longest, few ? kMostStages : 2);
  p.shared_bytes = shared_for(input, p);
}

inline Plan make_plan(Input input, int row_tiles, int units, int64_t tokens) {
  Plan p;
  while (1 << p.log2_slices < kMaxSlices && row_tiles << p.log2_slices < kBlocksWanted && 2 << p.log2_slices <= units)
    ++p.log2_slices;
  p.tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8;
  p.row_tiles = row_tiles;
  p.token_tiles = static_cast<int>((tokens + tokens_of(p.tiles) - 1) / tokens_of(p.tiles));
  // Results of wo_a want whole tiles.
  p.paired = input == Input::e4m3 &&
             ((p.slices() == 4 && row_tiles > kClustersOf4) || (p.slices() == 8 && row_tiles > kClustersOf8));
  fit(input, p, units);
  return p;
}

inline void set_plan(Params& p, const Plan& plan) {
  p.log2_slices = plan.log2_slices, p.stages = plan.stages, p.x_stages = plan.x_stages, p.paired = plan.paired;
}

}  // namespace fathom::ops::stream
