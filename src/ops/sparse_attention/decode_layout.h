// Where things lie during sparse attention decode: rows in shared memory, channels in registers, swizzles.
//
// A block of 8 warps works on `heads` = 16 * kMTiles heads and walks its rows in tiles of kTileRows. With g = lane / 4
// and t = lane % 4 as in mma.m16n8k16:
//   scores  S[heads, rows] = Q K^T   each warp takes kGroupsPerWarp groups of 64 channels for 1/kHeadGroups of the
//   heads;
//                                    partial sums over the channels meet in shared memory
//   output  O[heads, 512] += P V     warp w owns channels 64 w .. 64 w + 63 of all heads
// Both products read the one staged copy of the rows. The order of channels inside a product's inner dimension is free
// as long as both factors agree, and so is the order of output columns; it is chosen so that an fp8 row is read in
// 16-byte (K) and 8-byte (V) pieces that are decoded in registers, with no transposition and no bank conflict.
// Everything here is plain arithmetic, tested on the host.
#pragma once

#include <cstdint>

#include "ops/kv_rows.h"

namespace fathom::ops::sparse_decode {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kGroup = 64;     // channels of one slice: one KV scale group
inline constexpr int kRopeGroup = 7;  // the slice that carries RoPE
inline constexpr int kRingTiles = 8;  // tiles whose row addresses are kept
inline constexpr int kMostSplits = 32;

/// Partial results by mail (decode_mail.cuh): at most so many splits, bytes a block, blocks a launch.
inline constexpr int kMostMailSplits = 16, kMostMailBytes = 72 * 1024, kMostMailBlocks = 192;

/// Physical row, within a tile, of the row at logical position p. With a row stride of 96 (mod 128) bytes this makes
/// both kinds of access conflict-free: K pieces of positions (2i, 2i+1), and V pieces of positions 2t + const.
FATHOM_HOST_DEVICE constexpr int physical_row(int p) {
  const int low = p & 7, swapped = (low & 1) << 1 | (low >> 1 & 1);
  return (p & ~7) | ((swapped ^ (low >> 2 << 1)) | (low & 4));
}

/// physical_row(p + 1) for even p, and physical_row(p + 8 n): what the loops use instead of computing it again.
inline constexpr int kOddRowFlip = 2;

/// Byte offset of 32-byte piece holding (head, row p) inside a [heads][rows] fp32 score tile, swizzled.
template <int kRows>
FATHOM_HOST_DEVICE constexpr int score_offset(int head, int p) {
  const int swizzle = kRows == 16 ? (head >> 1 & 1) : (head & 3);
  return head * kRows * 4 + (((p >> 3) ^ swizzle) << 5) + (p & 7) * 4;
}

/// Byte offset of 16-byte piece `piece` (rows 8 piece .. 8 piece + 7) of head's row in a [heads][rows] fp16 tile.
template <int kRows>
FATHOM_HOST_DEVICE constexpr int probability_piece(int head, int piece) {
  constexpr int kPieces = kRows / 8, kHeadsPer128 = 8 / kPieces;
  return head * kRows * 2 + ((piece ^ (head / kHeadsPer128 & (kPieces - 1))) << 4);
}

/// Rows of this slice hold fp8 codes (else bf16 channels).
FATHOM_HOST_DEVICE constexpr bool slice_is_fp8(RowFormat format, int slice) {
  return format == RowFormat::v4 && slice != kRopeGroup;
}

/// Output fragments are kept, stored and combined as quads of four floats. Quad q = 4 * half + j of (m-tile, slice)
/// holds, for head 16 m + g + 8 half, two pairs of neighbouring channels of the slice: those at first_pair and
/// second_pair.
FATHOM_HOST_DEVICE constexpr int first_pair(bool fp8, int j, int t) {
  return fp8 ? 16 * t + 4 * j : 16 * j + 2 * t;
}
FATHOM_HOST_DEVICE constexpr int second_pair(bool fp8, int j, int t) {
  return fp8 ? 16 * t + 4 * j + 2 : 16 * j + 8 + 2 * t;
}

/// Kernels whose products take the channels of each 32 in another order, so that a thread's fragments are 8 neighbours:
/// channel 8 t + 2 p + e of the 32 lies at position 8 p + 2 t + e.
template <typename G>
inline constexpr bool kPermuted = requires {
  G::kPermutedChannels;
};
template <typename G>
FATHOM_HOST_DEVICE constexpr int first_pair_of(int slice, int j, int t) {
  if constexpr (kPermuted<G>)
    return 32 * (j / 2) + 8 * t + 4 * (j % 2);
  else
    return first_pair(slice_is_fp8(G::kFormat, slice), j, t);
}
template <typename G>
FATHOM_HOST_DEVICE constexpr int second_pair_of(int slice, int j, int t) {
  if constexpr (kPermuted<G>)
    return first_pair_of<G>(slice, j, t) + 2;
  else
    return second_pair(slice_is_fp8(G::kFormat, slice), j, t);
}

/// Whether a kernel instance takes the query tokens of a request together, as if they were more heads
/// (decode_packed.cuh).
inline constexpr int kMostPacked = 8;
template <typename G>
inline constexpr bool kTakesRequests = requires {
  G::kRequests;
};

/// Shared memory at kIncomingAt for the partial outputs that the final sum has on their way, kMTiles quads of a lane
/// and split. Instances without it, and those of one m-tile, keep them in registers.
FATHOM_HOST_DEVICE constexpr int incoming_bytes(int mtiles, int splits) {
  return mtiles > 1 ? kWarps * splits * mtiles * 32 * 8 : 0;
}
template <typename G>
inline constexpr bool kSumsFromShared = G::kMTiles > 1 && requires {
  G::kIncomingAt;
};

/// How a kernel instance divides a tile of rows among 8 warps.
template <RowFormat kFormat_, int kMTiles_, int kHeadGroups_>
struct Division {
  static constexpr RowFormat kFormat = kFormat_;
  static constexpr int kMTiles = kMTiles_, kHeadGroups = kHeadGroups_, kTileRows = 16;
  static constexpr int kHeads = 16 * kMTiles;
  static constexpr int kGroupsPerWarp = kHeadGroups;  // 8 groups over 8 / kHeadGroups warps
  static constexpr int kSlices = kWarps / kHeadGroups;
  static constexpr int kScoreMTiles = kMTiles / kHeadGroups;
  static_assert(kMTiles % kHeadGroups == 0);

  static constexpr int kRowStride = kFormat == RowFormat::v4 ? 608 : 1040;
  static constexpr int kScaleOffset = 576;  // V4: the row's scale bytes follow its data
  static constexpr int kStageBytes = kTileRows * kRowStride;

  /// Blocks an SM that the register budget is made for; whether shared memory has room for them depends on the GPU.
  static constexpr int kBlocksPerSm = kMTiles == 1 ? 2 : 1;

  // One thread reduces kScoresPerThread neighbouring rows of one head; kLanesPerHead lanes share the head.
  static constexpr int kScoresPerThread = kMTiles;
  static constexpr int kLanesPerHead = 16 / kMTiles;
  static_assert(kScoresPerThread == 1 || kScoresPerThread == 2 || kScoresPerThread == 4);

  static constexpr int kScoreBytes = kHeads * kTileRows * 4;  // one slice's partial scores of a tile
  static constexpr int kScoreBuffer = kSlices * kScoreBytes;
  static constexpr int kProbabilityBuffer = kHeads * kTileRows * 2;
  static constexpr int kQuads = kMTiles * kWarps * 8 * 32;  // quads of one block's output
  static constexpr int kSumAhead = 16 / kMTiles;            // splits whose quads are asked for together

  // Over the stages, which are free when splits are summed up: rows of finished groups (codes); float [splits][heads]
  // weights and [splits][m-tiles][slices] factors.
  static constexpr int kGroupRowsAt = 0;
  static constexpr int kWeightsAt = kWarps * 8 * (256 + 16);
  static constexpr int kFactorsAt = kWeightsAt + kMostSplits * kHeads * 4;
  static constexpr int kSumEnd = kFactorsAt + kMostSplits * kMTiles * kWarps * 4;
};

/// Sizes of one instance of the pipelined kernel and its map of shared memory.
template <RowFormat kFormat_, int kMTiles_, int kHeadGroups_, int kStages_, bool kPacked_ = false>
struct Geometry : Division<kFormat_, kMTiles_, kHeadGroups_> {
  using Base = Division<kFormat_, kMTiles_, kHeadGroups_>;
  using Base::kHeads, Base::kTileRows, Base::kScoreBuffer, Base::kProbabilityBuffer;
  static constexpr int kStages = kStages_;
  static_assert(kStages >= 4 && kStages <= kRingTiles && kRingTiles * kTileRows <= kThreads);

  static constexpr int kStageAt = 0;
  static constexpr int kScoreAt = kStageAt + kStages * Base::kStageBytes;
  static constexpr int kProbabilityAt = kScoreAt + 2 * kScoreBuffer;
  static constexpr int kCorrectionAt = kProbabilityAt + 2 * kProbabilityBuffer;  // float [2][heads]
  static constexpr int kChangedAt = kCorrectionAt + 2 * kHeads * 4;              // byte [2][warps]
  static constexpr int kRowDataAt = kChangedAt + 2 * kWarps;                     // pointer [ring][rows]
  static constexpr int kRowScaleAt = kRowDataAt + kRingTiles * kTileRows * 8;    // pointer [ring][rows]
  static constexpr int kRowBiasAt = kRowScaleAt + kRingTiles * kTileRows * 8;    // float [ring][rows]: 0 or -inf
  static constexpr int kStateAt = kRowBiasAt + kRingTiles * kTileRows * 4;       // float2 [heads]: reference, sum
  static constexpr int kSinkAt = kStateAt + kHeads * 8;                          // float [heads]
  static constexpr int kRotationAt = kSinkAt + kHeads * 4;                       // float2 [32]: cos, sin
  static constexpr int kRotations = kPacked_ ? kMostPacked : 1;
  static constexpr int kFlagAt = kRotationAt + kRotations * 32 * 8;  // 16 bytes
  static constexpr int kPassesAt = kFlagAt + 16;  // packed: int [warps] sums, byte [16] passes of the first groups
  static constexpr int kSharedBytes = kPassesAt + (kPacked_ ? kWarps * 4 + 16 : 0);

  // After the walk the stages and score buffers are free. A block that is alone rounds its rows there. One that is not
  // keeps 8 rows of 128 channels for each warp (codes).
  static constexpr int kIncomingAt = Base::kSumEnd;
  static_assert(kIncomingAt + incoming_bytes(kMTiles_, Base::kSumAhead) <= kStateAt);
  static_assert(kHeads * (kHeadDim * 2 + 16) <= kStateAt);
  static constexpr int kProbabilityExponent = 0;  // probabilities are kept as they are
};

/// The same for the query tokens of a request together.
template <int kMTiles_, int kHeadGroups_, int kStages_>
struct Packed : Geometry<RowFormat::v4, kMTiles_, kHeadGroups_, kStages_, true> {
  static constexpr bool kRequests = true;
};

/// Sizes of one instance of the kernel for few rows: V4 rows, at most kTiles tiles a block, all in shared memory at
/// once. kCluster blocks (0: none) form a cluster; each has kCluster messages of the others in its shared memory.
template <int kMTiles_, int kHeadGroups_, int kTiles_, int kCluster_>
struct Burst : Division<RowFormat::v4, kMTiles_, kHeadGroups_> {
  using Base = Division<RowFormat::v4, kMTiles_, kHeadGroups_>;
  using Base::kHeads, Base::kTileRows, Base::kScoreBuffer, Base::kProbabilityBuffer;
  static constexpr int kTiles = kTiles_, kCluster = kCluster_;
  static constexpr int kBlocksPerSm = kMTiles_ == 1 ? 2 : 1;
  static_assert(2 * kTiles <= 32);

  static constexpr int kStageAt = 0;
  static constexpr int kScoreAt = kStageAt + kTiles * Base::kStageBytes;
  static constexpr int kProbabilityAt = kScoreAt + kTiles * kScoreBuffer;
  static constexpr int kRowBiasAt = kProbabilityAt + kTiles * kProbabilityBuffer;  // float [rows]
  static constexpr int kStateAt = kRowBiasAt + kTiles * kTileRows * 4;             // float2 [heads]
  static constexpr int kSinkAt = kStateAt + kHeads * 8;                            // float [heads]
  static constexpr int kRotationAt = kSinkAt + kHeads * 4;                         // float2 [32]
  static constexpr int kFlagAt = kRotationAt + 32 * 8;                             // 16 bytes
  static constexpr int kBarrierAt = kFlagAt + 16;                                  // 16 bytes
  static constexpr int kInboxAt = kBarrierAt + 16;                                 // [cluster] messages
  static constexpr int kMessageBytes = kCluster ? kHeads * 8 + 16 + 64 / (kCluster ? kCluster : 1) * 256 : 0;
  static constexpr int kSharedBytes = kInboxAt + kCluster * kMessageBytes;
  static constexpr int kOutboxAt = kScoreAt;  // the scores are not needed any more
  static_assert(kCluster * kMessageBytes <= kTiles * kScoreBuffer);
  static_assert(Base::kSumEnd <= kStateAt && kHeads * (kHeadDim * 2 + 16) <= kStateAt);

  /// Probabilities are kept times 2^14: rows' scales are applied to them, and shrink them by up to 2^12.
  static constexpr int kProbabilityExponent = 14;
};

/// The instances that are compiled. All fit the 99 KB that a block may have on sm_86, sm_89 and sm_120.
using V4Heads16 = Geometry<RowFormat::v4, 1, 1, 8>;
using V4Heads32 = Geometry<RowFormat::v4, 2, 1, 6>;
using V4Heads64 = Geometry<RowFormat::v4, 4, 2, 6>;
using V4Packed32 = Packed<2, 1, 6>;
using Bf16Heads16 = Geometry<RowFormat::bf16, 1, 1, 4>;
using Bf16Heads32 = Geometry<RowFormat::bf16, 2, 2, 4>;
inline constexpr int kPortableSharedBytes = 99 * 1024;
static_assert(V4Heads16::kSharedBytes <= kPortableSharedBytes && V4Heads32::kSharedBytes <= kPortableSharedBytes &&
              V4Heads64::kSharedBytes <= kPortableSharedBytes && V4Packed32::kSharedBytes <= kPortableSharedBytes &&
              Bf16Heads16::kSharedBytes <= kPortableSharedBytes && Bf16Heads32::kSharedBytes <= kPortableSharedBytes);

}  // namespace fathom::ops::sparse_decode
