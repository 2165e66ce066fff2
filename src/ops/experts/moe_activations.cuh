// Where the products find their activations: bf16 rows of 16-byte pieces, a block of 128 columns at a time.
//
// *Product order* is the order of the weights' codes in a thread's registers: piece 4 i + t of a block holds columns
// 32 t + 8 i ... as pairs (0,4) (1,5) (2,6) (3,7). *In order* are rows as they are, for fp8 weights alone. With few
// tokens products read rows through the first-level cache; with many, blocks of columns go through a ring in shared
// memory, ahead of the products.
#pragma once

#include "ops/experts/moe_weights.cuh"

namespace fathom::ops::moe {

/// Where the eight columns 8 i ... of a block lie in product order, in bytes.
FATHOM_DEVICE int place_of(int i) {
  return (i % 4 * 4 + i / 4) * 16;
}

/// The piece of a block that a thread multiplies in a step; `unit` of the block.
template <ExpertFormat kFormat, bool kInOrder>
FATHOM_DEVICE int piece_of(int unit, int step, int lane) {
  const int t = lane % 4;
  if constexpr (is_fp4(kFormat)) return step * 4 + t;
  if constexpr (kInOrder) return unit * 8 + t * 2 + step;
  return (t % 2 * 2 + step) * 4 + unit * 2 + t / 2;
}

/// Where half `half` of the 32 columns of group `group` of a stage lie for teams, 16 bytes of token `token` of a tile:
/// those of four columns 8 i + 4 half ... at 4 i.
FATHOM_DEVICE int team_place(int group, int half, int token) {
  return token / 8 * kTeamEight + (group * 2 + half) * 128 + token % 8 * 16;
}
/// The same of the shared expert: 16 columns in their order.
FATHOM_DEVICE int shared_place(int piece, int token) {
  return token / 8 * (kTeamEight / 2) + piece * 128 + token % 8 * 16;
}

/// Rows in product order.
struct ProductOrder {
  static constexpr bool kInOrder = false;
  const std::byte* base;  // of the slice
  FATHOM_DEVICE const std::byte* block(int b) const { return base + b * kBlockBytes; }
};

/// Rows through the cache. A thread reads those of tokens lane / 4 of each eight.
template <int kTiles, typename From>
struct Cached {
  static constexpr bool kInOrder = From::kInOrder;
  From from;
  uint32_t offset[kTiles];  // of the rows, bytes

  template <ExpertFormat>
  FATHOM_DEVICE void enter(int) {}
  template <ExpertFormat kFormat>
  FATHOM_DEVICE const std::byte* step(int unit, int step, int lane) const {
    constexpr int kUnits = block_units(kFormat);
    return from.block(unit / kUnits) + piece_of<kFormat, kInOrder>(unit % kUnits, step, lane) * 16;
  }
  FATHOM_DEVICE uint32_t row(int j) const { return offset[j]; }
};

/// Rows through a ring of shared memory, for 64 tokens. All threads of the block take part.
template <typename From>
struct Staged {
  static constexpr bool kInOrder = From::kInOrder;
  From from;
  std::byte* ring;
  int tokens, blocks, threads;

  /// Where the rows begin, behind the ring.
  FATHOM_DEVICE uint32_t* offsets() const { return reinterpret_cast<uint32_t*>(ring + kStages * kStageBytes); }

  /// Pieces that one load instruction takes from two neighbouring tokens must differ in their place modulo 8.
  static FATHOM_DEVICE int place(int token, int piece) {
    if constexpr (kInOrder) return token * kBlockBytes + (piece ^ (token & 1)) * 16;
    return token * kBlockBytes + (piece ^ piece >> 3 << 1 ^ (token & 1) << 2) * 16;
  }
  FATHOM_DEVICE void copy(int block) {
    if (block < blocks) {
      const std::byte* source = from.block(block);
      std::byte* to = ring + block % kStages * kStageBytes;
      FATHOM_UNROLL_1
      for (int i = device::thread_index(); i < tokens * 16; i += threads)
        device::copy_async_16(to + place(i / 16, i % 16), source + offsets()[i / 16] + i % 16 * 16, true);
    }
    device::copy_async_commit();
  }
  FATHOM_DEVICE void begin() {
    FATHOM_UNROLL
    for (int b = 0; b < kStages - 1; ++b) copy(b);
  }

  template <ExpertFormat kFormat>
  FATHOM_DEVICE void enter(int unit) {
    if (unit % block_units(kFormat) != 0) return;
    device::copy_async_wait<kStages - 2>();
    device::sync_block();  // the block is there, and everybody has done with the one before
    copy(unit / block_units(kFormat) + kStages - 1);
  }
  template <ExpertFormat kFormat>
  FATHOM_DEVICE const std::byte* step(int unit, int step, int lane) const {
    constexpr int kUnits = block_units(kFormat);
    return ring + unit / kUnits % kStages * kStageBytes +
           place(lane / 4, piece_of<kFormat, kInOrder>(unit % kUnits, step, lane));
  }
  FATHOM_DEVICE uint32_t row(int j) const { return static_cast<uint32_t>(j) * (8 * kBlockBytes); }
};

}  // namespace fathom::ops::moe
