// What the CUDA kernels of the experts are launched with, and how their plan divides the work.
//
// Three launches. *Prepare* sorts tokens by expert into tiles (up to `tile_tokens` tokens of one expert), and widens x
// to bf16. *Up* multiplies a tile by rows of w1 and the same rows of w3, down to the hidden row; the block that
// completes 128 channels of a tile quantises them. *Down* multiplies by w2; the block that completes some columns of y
// sums the experts of every token. Tiles are counted on the device; grids come from the largest possible number. Few
// tokens on sm_90 take two launches (moe_few.cuh) or one (moe_few_both.cuh).
//
// Columns of a row go in blocks of 128 and the blocks into `slices`, a power of two that depends on the widths alone:
// a slice is summed by one warp, block after block, and slices are added in order. So a token has the same bits
// whatever else is in the batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/experts/experts.h"
#include "ops/residual_mix/end_params.h"

namespace fathom::ops::moe {

inline constexpr int kGroupRows = 16;  // of a tensor core tile
inline constexpr int kBlock = 128;     // columns that share the scale of an activation
inline constexpr int kMaxSlices = 4, kPrepareThreads = 256, kMostExperts = 2048;

/// Activations of 64 tokens on their way to the products: stages of 128 columns in bf16, and the rows' offsets.
inline constexpr int kBlockBytes = 2 * kBlock, kStages = 4, kStageBytes = 64 * kBlockBytes;
inline constexpr int kRingBytes = kStages * kStageBytes + 64 * 4;

/// Weights on their way with few tokens: a warp has a ring of stages, 128 bytes of 2 x 16 rows each.
inline constexpr int kLineBytes = 128, kMatrixBytes = kGroupRows * kLineBytes;
inline constexpr int kWeightStages = 3, kWeightRing = kWeightStages * 2 * kMatrixBytes;

/// The same where warps stream from one piece of work to the next (moe_stream.cuh).
inline constexpr int kStreamWarps = 16, kStreamStages = 3, kStreamStage = 2 * kMatrixBytes;
inline constexpr int kStreamRing = kStreamStages * kStreamStage;
inline constexpr int kStreamShared = kStreamWarps * (kStreamRing + kStreamStages * 8);  // with 8-byte barriers

/// Where teams of eight warps do (moe_teams.cuh): a stage of a ring is 128 bytes of 2 x 128 rows, and the activations
/// of 256 columns and 8 or 16 tokens (128 and 16 of the shared expert): codes, then the fp32 scales of their blocks.
inline constexpr int kTeams = 2, kTeamStages = 3, kTeamMatrix = kBlock * kLineBytes, kTeamStage = 2 * kTeamMatrix;
/// Eight warps of a team multiply, with more registers; a warp of one more warpgroup asks for each.
inline constexpr int kTeamThreads = kTeams * 256 + 128, kTeamRegisters = 112, kAskRegisters = 32;
inline constexpr int kTeamTokens = 16, kTeamEight = 2048;  // most of a tile; bytes of codes of eight of them
FATHOM_HOST_DEVICE constexpr int team_x_bytes(int tokens) {
  return tokens * (2 * kBlock + 2 * 4);
}
inline constexpr int kSharedXBytes = kTeamTokens * (kBlock + 4);
/// In shared memory blocks of 128 bytes are aligned.
FATHOM_HOST_DEVICE constexpr int team_x_pitch(int tokens) {
  return (team_x_bytes(tokens) + 127) / 128 * 128;
}
inline constexpr int kTeamX = kTeams * kTeamStages * kTeamStage, kTeamRestBytes = 1536;  // barriers, pieces
FATHOM_HOST_DEVICE constexpr int team_rest(int tokens) {
  return kTeamX + kTeams * kTeamStages * team_x_pitch(tokens);
}
constexpr int team_shared(int tokens) {
  return team_rest(tokens) + kTeams * kTeamRestBytes;
}
inline constexpr float kBytesRestore = 16384.0f;  // what is left to multiply sums of codes in e5m2 with
inline constexpr int kSumThreads = 64;            // of 64 registers: a block has a place beside one of the teams'

/// Few tokens (moe_few.cuh): a warp has a ring of 2 to 4 stages of 128 bytes of 2 x 16 rows, with their scales.
inline constexpr int kFewUpWarps = 16, kFewDownWarps = 16, kFewTokens = 8, kFewSlots = 32;
inline constexpr int kFewMostStages = 4, kFewStage = 2 * kMatrixBytes, kFewScaleBytes = 256;
inline constexpr int kFewShared = 227 * 1024;  // bytes a block may have on sm_90

/// Many tokens of an expert (moe_many.cuh): tiles of 64 tokens, 128 rows of two matrices, stages of 128 bytes of a row.
inline constexpr int kManyTokens = 64, kManyRows = 128, kManyStages = 3, kManyConsumers = 8, kManyThreads = 384;
inline constexpr int kManyWeights = 2 * kManyRows * kLineBytes,
                     kManyStage = kManyWeights + 2 * kManyTokens * kBlockBytes;
inline constexpr int kManyResultPitch = 2 * kManyRows + 16, kManyTables = kManyStages + 1;
struct ManyTable {
  int32_t slot[kManyTokens];
  float weight[kManyTokens];
  uint32_t row[kManyTokens];  // where activations begin, bytes
};
inline constexpr int kManyShared = kManyStages * (kManyStage + 2 * 8) + kManyTokens * kManyResultPitch +
                                   kManyTables * static_cast<int>(sizeof(ManyTable));

/// The same matrix of every expert, or the shared one (distances between experts are 0).
struct Weight {
  const std::byte* codes = nullptr;
  const uint8_t* scale = nullptr;
  const float* global = nullptr;               // by expert, nvfp4
  int64_t expert_codes = 0, expert_scale = 0;  // bytes from one expert to the next
  int32_t row_bytes = 0, scale_row = 0;        // bytes from one row (of scales) to the next
  int32_t rows = 0, blocks = 0;                // N, K / 128
};

/// Tokens of one expert. `first` counts in `sorted`, and for the shared expert (-1) in the batch.
struct alignas(16) Tile {
  int32_t expert, first, count, unused;
};

/// Whether weights go through that ring; with the fewest tokens registers serve better.
constexpr bool uses_ring(int tiles) {
  return tiles == 2;
}

/// Where things lie in the shared memory of a block of moe_few.cuh, in bytes; rings come first.
struct FewLayout {
  int32_t warps = 0, stages = 0;                  // of a block; of a warp's ring; 0: there is no place
  int32_t scales = 0, barriers = 0, meeting = 0;  // of the rings; barriers of the rings, of the groups of warps
  int32_t rows = 0, sums = 0;                     // activations; fp32
  int32_t end = 0;                                // what the end of a half needs
  int32_t row_pitch = 0, bytes = 0;

  /// Room for the end of a half behind everything else: at most mix::kEndRoom bytes.
  void place_end() { end = (bytes + 15) / 16 * 16, bytes = end + mix::kEndBytes; }
};

/// Where the blocks of one launch for both products meet. Zero before its first use.
struct Gate {
  uint32_t arrived = 0, before = 0;  // blocks so far, and before this launch
};

struct Plan {
  int tiles = 1;  // of 8 tokens: 1, 2, and 8 (6 for nvfp4, whose scales take registers)
  int log2_up_slices = 0, log2_down_slices = 0;
  int log2_up_sets = 0, log2_down_sets = 0;  // of 16 rows of w1 and of w3, or of 32 rows of w2, in a block
  int shared_tiles = 0, most_tiles = 0;      // grid height: the shared expert's tiles come first
  int up_blocks = 0, down_blocks = 0;        // grid width
  size_t up_shared = 0, down_shared = 0, prepare_shared = 0;
  bool teams = false;     // teams of warps do so instead (moe_teams.cuh)
  int team_tokens = 8;    // of a tile then: 8 or 16
  int stream_blocks = 0;  // where warps stream: as many as multiprocessors; otherwise 0
  bool few = false;       // one or two launches, of moe_few.cuh, with as many blocks as up_blocks and down_blocks
  FewLayout few_up, few_down;
  int few_shares = 1;   // of few_up: blocks that have the same rows of different tiles
  bool both = false;    // in one launch (moe_few_both.cuh), with the rings of few_up
  bool ends = false;    // that launch also ends the half
  int many_blocks = 0;  // by moe_many.cuh: as many as multiprocessors; otherwise 0
  int many_tokens = 0;  // of a tile then: 32 or 64

  int tile_tokens() const {
    return teams ? team_tokens : many_blocks > 0 ? many_tokens : stream_blocks > 0 ? 8 : 8 * tiles;
  }
  int shared_tokens() const { return many_blocks > 0 ? many_tokens : 8 * tiles; }  // of the shared expert
  /// With most tokens a warp takes all slices, otherwise one.
  int up_threads() const { return 32 << ((tiles > 2 ? 0 : log2_up_slices) + log2_up_sets); }
  int down_threads() const { return 32 << ((tiles > 2 ? 0 : log2_down_slices) + log2_down_sets); }
};

struct Params {
  Weight w1, w3, w2, s1, s3, s2;
  const e4m3* x = nullptr;
  const e8m0* x_scale = nullptr;
  const int32_t* expert = nullptr;
  const float* weight = nullptr;
  bf16* y = nullptr;
  float* sum = nullptr;  // in place of y
  int64_t x_stride = 0, x_scale_stride = 0, expert_stride = 0, weight_stride = 0, y_stride = 0,
          sum_stride = 0;  // elements
  int32_t tokens = 0, choices = 0, experts = 0, first_expert = 0, d = 0, hidden_pitch = 0;
  float limit = 10;
  mix::End end;
  int32_t tile_tokens = 8, shared_tokens = 8, shared_tiles = 0, counters = 0;
  bool few = false;       // tiles can be found without the sort
  bool x_is_old = false;  // x may be read before the previous kernel has ended
  bool many = false;      // activations lie in the order of moe_many.cuh
  FewLayout few_up, few_down;
  int32_t few_shares = 1;
  bool bytes = false;   // codes lie in the order of bytes
  bool teams = false;   // activations lie in tiles of codes (moe_teams.cuh)
  bool groups = false;  // sums of 32 columns are scaled (moe_groups.cuh); activations lie in the order of columns
  int32_t log2_up_slices = 0, log2_down_slices = 0, log2_up_sets = 0, log2_down_sets = 0;

  // Workspace; the gate, at one place for all shapes, must be zeroed once. A slot is token * choices + choice, and
  // tokens * choices + token for the shared expert.
  Gate* gate = nullptr;
  Tile* tile = nullptr;  // [most_tiles - shared_tiles] of routed experts, ascending
  uint32_t* tile_count = nullptr;
  int32_t* sorted = nullptr;  // [tokens * choices] slots by expert
  // Blocks that are done: [most_tiles, hidden_pitch / 128], then [down_blocks]; where warps stream, warps that are
  // done, [d / 32] as the second part, and then 2 counts of pieces handed out.
  uint32_t* arrivals = nullptr;
  int32_t row_arrivals = 0;  // where the second part begins
  bf16* x_wide = nullptr;    // [tokens, d] in product order; moe_many.cuh: once more for the shared expert
  bf16* hidden = nullptr;    // [slots, hidden_pitch]: as computed, then quantised and in product order
  bf16* part = nullptr;      // [slots, d] results of each expert
  // For teams x and the hidden rows lie tile by tile (tile_codes()), stage by stage.
  std::byte *x_tiles = nullptr, *hidden_tiles = nullptr;
};

/// Depends on static shapes and the device alone; slices on neither the device nor the number of tokens.
/// `most_tiles`: of 8 tokens in a block, 6 or 8; `stream_blocks`: how many blocks whose warps stream the GPU holds, 0
/// if they shall not.
Plan make_plan(const ExpertsArgs& a, int most_tiles = 8, int stream_blocks = 0);

/// The most_tiles of a GPU: what its compiler has registers for.
inline int most_tiles_of(const DeviceInfo& device) {
  return device.compute_capability == 90 ? 8 : 6;
}

/// The stream_blocks of a GPU.
inline int stream_blocks_of(const DeviceInfo& device) {
  const bool fits = device.compute_capability == 90 && device.shared_bytes >= std::max(kStreamShared, kFewShared);
  return fits ? device.sm_count : 0;
}

/// Bytes of workspace; with memory, also sets the pointers.
size_t carve(const ExpertsArgs& a, const Plan& plan, void* memory, Params& p);

Params pack(const ExpertsArgs& a, const Plan& plan);

/// Slice `slice` of 2^log2_slices begins at this block of columns.
FATHOM_HOST_DEVICE inline int first_block(int blocks, int log2_slices, int slice) {
  return blocks * slice >> log2_slices;
}

/// Launches all three kernels; `early`: each starts while the one before it ends. Throws Error when CUDA refuses.
void launch_mxfp4(const Params& p, const Plan& plan, bool early, void* stream);
void launch_nvfp4(const Params& p, const Plan& plan, bool early, void* stream);
void launch_fp8(const Params& p, const Plan& plan, bool early, void* stream);
void launch_stream_mxfp4(const Params& p, const Plan& plan, void* stream);  // without prepare; by p.groups
void launch_teams(const Params& p, const Plan& plan, void* stream);         // without prepare
void launch_sum(const Params& p, void* stream);                             // behind teams, and behind many tokens
void launch_few_mxfp4(const Params& p, const Plan& plan, void* stream);     // without prepare
void launch_many_mxfp4(const Params& p, const Plan& plan, void* stream);    // without prepare
void launch_prepare(const Params& p, const Plan& plan, bool early, void* stream);

}  // namespace fathom::ops::moe
