// Scores by warps for themselves: 32 entries at a time in a stream, 16 where all keys are written.
#pragma once

#include "ops/index_select/selection.cuh"

namespace fathom::ops::index_select {

/// Shared memory of a block that writes keys.
template <typename Choice, int kMost>
struct WarpKeys {
  static constexpr int kMostFew = kMost;
  Queries queries;
  Choice choice;

  struct First {
    RowPlace place;
  };
  FATHOM_DEVICE static First begin(const Params&, const Keys& keys, int) {
    return {place_row(keys, kTile * tile_index())};
  }
  /// Writes this block's share of the keys; entries past the last one of a tile get one, too. Rows at multiples of 16
  /// bytes.
  FATHOM_DEVICE void write_keys(const Params& p, int64_t t, int blocks, First first, uint16_t* to) {
    const Keys& keys = choice.keys;
    const int lane = device::lane_index(), tiles = (keys.visible + kTile - 1) / kTile;
    int tile = tile_index();
    Tile<1> rows;
    if (tile < tiles) load_tile<true>(keys, first.place, rows);
    load_queries(p.a, t, queries);
    device::sync_block();
    const int head_tiles = (static_cast<int>(p.a.q.size[1]) + 15) / 16 * 2;
    FATHOM_UNROLL_1
    while (tile < tiles) {  // the same for a whole warp
      Rows<1> factors;
      spread_tile<1>(rows, factors);
      uint16_t* here = to + kTile * tile;
      tile += blocks * kWarps;
      if (tile < tiles) load_tile<true>(keys, place_row(keys, kTile * tile), rows);
      const uint32_t key = score_rows<1>(factors, head_tiles, queries);
      if (lane % 4 < 2) here[lane % 4 * 8 + lane / 4] = static_cast<uint16_t>(key);
    }
  }

 private:
  static constexpr int kTile = 16;
  FATHOM_DEVICE static int tile_index() { return device::block_x() * kWarps + device::warp_index(); }
};
using FewScan = WarpKeys<FewSelection, kFewEntries>;

/// Shared memory of a block.
struct WarpScan : WarpKeys<Selection, kManyEntries> {
  alignas(4) uint16_t chunk[kChunkKeys];

  /// Scores entries [begin, end); returns how many candidates are in the buffer.
  FATHOM_DEVICE int stream(const Params& p, int64_t t, int32_t begin, int32_t end) {
    return is_aligned(choice.keys) ? rows<true>(p, t, begin, end) : rows<false>(p, t, begin, end);
  }

 private:
  template <bool kAligned>
  FATHOM_DEVICE int rows(const Params& p, int64_t t, int32_t begin, int32_t end) {
    const Keys& keys = choice.keys;  // registers are needed for other things
    const int lane = device::lane_index(), warp = device::warp_index(), k = p.a.topk;
    const int head_tiles = (static_cast<int>(p.a.q.size[1]) + 15) / 16 * 2;
    int count = 0;
    Tile<2> tile;
    int32_t mine = begin + warp * kWarpKeys;
    if (mine < end) load_tile<kAligned>(keys, place_row(keys, mine), tile);
    if (device::thread_index() == 0) choice.least = 0;
    if (begin < end) load_queries(p.a, t, queries);  // while the first rows are on their way
    device::sync_block();
    for (int32_t first = begin; first < end; first += kChunkKeys, mine += kChunkKeys) {
      if (mine < end) {  // the same for a whole warp
        Rows<2> factors;
        spread_tile<2>(tile, factors);
        if (mine + kChunkKeys < end)
          load_tile<kAligned>(keys, place_row(keys, mine + kChunkKeys), tile);  // in flight during the products
        const uint32_t key = score_rows<2>(factors, head_tiles, queries);
        chunk[warp * kWarpKeys + lane % 4 * 8 + lane / 4] = static_cast<uint16_t>(key);
      }
      device::sync_block();
      if (count + kChunkKeys > kBufferKeys) cut_buffer<false>(count, k, choice), count = k;
      count = append_chunk<1>(count, first, end, chunk, choice);
    }
    device::sync_block();
    return count;
  }
};

}  // namespace fathom::ops::index_select
