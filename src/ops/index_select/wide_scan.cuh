// Scores by warpgroup products (sm_90a), for long streams of entries, many heads and pages of a multiple of 16 rows.
//
// A warp has 16 entries of one page at a time as rows of the product, spread from codes to bf16 in registers in the
// same order of channels as in score_kernel.cuh; the queries of all heads lie in shared memory. So a score has the bits
// that it has there. The block meets after 512 entries.
#pragma once

#include "ops/device/mma_fp8.cuh"
#include "ops/index_select/selection.cuh"

namespace fathom::ops::index_select {

inline constexpr int kWideTiles = 4;  // of a warp between two meetings of the block
inline constexpr int kWideStep = kWarps * kWideRows, kWideChunk = kWideTiles * kWideStep;
inline constexpr int kQueryHalf = kMostHeads * 128;  // bytes: all heads, half of the channels

struct WideQueries {
  alignas(1024) std::byte queries[2 * kQueryHalf];  // [half of the channels][head][64] bf16, in 128-byte swizzle
  uint32_t weight[kMostHeads / 2];                  // bf16 pairs
};

/// Queries and weights of token t into shared memory. Pair k of word w of a lane (g, t) meets columns 2 t + 8 (k % 2)
/// of step 2 w + k / 2.
FATHOM_DEVICE void load_wide_queries(const IndexSelectArgs& a, int64_t t, WideQueries& to) {
  spread_queries(a, t, kMostHeads, to.weight, [&](int head, int group, int w, const uint32_t(&pair)[4]) {
    std::byte* row = to.queries + head * 128;
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int step = 2 * w + k / 2, byte = 32 * (step % 4) + 4 * group + 16 * (k % 2);
      *reinterpret_cast<uint32_t*>(row + step / 4 * kQueryHalf + (byte ^ head % 8 << 4)) = pair[k];
    }
  });
}

/// The first row of the 16 entries from `first` on, a multiple of 16; past the last entry, of those that have it.
struct WidePlace {
  int32_t number, row;  // of the page, in the page
};
FATHOM_DEVICE WidePlace place_rows(const Keys& k, Divisor page_rows, int32_t first) {
  const int32_t last = (k.visible - 1) / kWideRows * kWideRows, entry = first < last ? first : last;
  const auto page = static_cast<int32_t>(static_cast<uint64_t>(entry) * page_rows.factor >> page_rows.shift);
  return {k.pages[page], entry - page * k.page_rows};
}

/// Codes and scales of group t of the rows g and g + 8.
struct WideTile {
  device::Words4 code[2];
  uint32_t scale[2];
};
FATHOM_DEVICE void load_rows(const Keys& k, WidePlace at, WideTile& tile) {
  const int lane = device::lane_index(), row = at.row + lane / 4;
  const std::byte* page = k.data + at.number * k.stride;
  const std::byte* codes = page + row * kIndexCodeBytes + lane % 4 * 16;
  const std::byte* scales = page + k.page_rows * kIndexCodeBytes + row * kIndexScaleBytes + lane % 4;
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r) {
    tile.code[r] = *reinterpret_cast<const device::Words4*>(codes + 8 * r * kIndexCodeBytes);
    tile.scale[r] = static_cast<uint32_t>(scales[8 * r * kIndexScaleBytes]);
  }
}

/// spread_codes() with half of the shifts done by products: both places of a code at once.
FATHOM_DEVICE void spread_codes_wide(uint32_t w, uint32_t (&pair)[4]) {
  constexpr uint32_t kBoth = 0x81C081C0, kEven = 0x000F000F, kOdd = 0x00F000F0;
  const uint32_t upper = w >> 8;
  pair[0] = (w & kEven) * 0x1040 & kBoth;
  pair[1] = (w & kOdd) * 0x104 & kBoth;
  pair[2] = (upper & kEven) * 0x1040 & kBoth;
  pair[3] = (upper & kOdd) * 0x104 & kBoth;
}

/// Scores of the 16 entries of this warp: lane (g, t) gets the key of entry g for t = 0, g + 8 for t = 1. By all four
/// warps of a warpgroup together.
FATHOM_DEVICE uint32_t score_wide(const WideTile& tile, const WideQueries& shared) {
  const int t = device::lane_index() % 4;
  uint32_t a[8][4];
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r) {
    const uint32_t field = tile.scale[r] + 63, factor = (field < 254 ? field : 254) * 0x00800080;
    FATHOM_UNROLL
    for (int w = 0; w < 4; ++w) {
      uint32_t pair[4];
      spread_codes_wide(tile.code[r].word[w], pair);
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) a[2 * w + i / 2][r + i % 2 * 2] = device::multiply_bf16x2(pair[i], factor);
    }
  }
  float dot[kMostHeads / 2];
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < 8; ++step) {
    const std::byte* columns = shared.queries + step / 4 * kQueryHalf + step % 4 * 32;
    device::multiply_rows_bf16<kMostHeads / 8>(dot, a[step], device::describe_matrix(columns, 16, 1024), step > 0);
  }
  device::multiply_end();
  constexpr uint32_t kOnes = 0x3F803F80;
  float total[4] = {};
  FATHOM_UNROLL
  for (int h = 0; h < kMostHeads / 8; h += 2) {
    uint32_t weighted[4];
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t weight = shared.weight[(h + half) * 4 + t];
      const float* d = dot + 4 * (h + half);
      FATHOM_UNROLL
      for (int r = 0; r < 2; ++r)
        weighted[2 * half + r] = device::multiply_bf16x2(device::pack_relu_bf16x2(d[2 * r], d[2 * r + 1]), weight);
    }
    device::mma_bf16(total, weighted, kOnes, kOnes);
  }
  return key_of(t == 0 ? total[0] : total[2]);
}

/// Shared memory of a block.
struct WideScan {
  static constexpr int kMostFew = kManyEntries;
  using First = WidePlace;
  WideQueries queries;
  alignas(4) uint16_t chunk[kWideChunk];
  Selection choice;

  FATHOM_DEVICE static First begin(const Params& p, const Keys& keys) {
    return place_rows(keys, p.page_rows, first_entry());
  }
  /// Writes this block's share of the keys.
  FATHOM_DEVICE void write_keys(const Params& p, int64_t t, int blocks, First first, uint16_t* to) {
    const Keys& keys = choice.keys;
    const int lane = device::lane_index(), stride = blocks * kWideStep;
    WideTile tile;
    load_rows(keys, first, tile);
    load_wide_queries(p.a, t, queries);
    int32_t mine = first_entry();
    WidePlace next = place_rows(keys, p.page_rows, mine + stride);
    device::publish_to_products();
    device::sync_block();
    const int32_t end = keys.visible + device::warp_index() % 4 * kWideRows;  // while the warpgroup has entries
    FATHOM_UNROLL_1
    for (; mine < end; mine += stride) {
      const WideTile now = tile;
      load_rows(keys, next, tile);  // in flight during the products
      next = place_rows(keys, p.page_rows, mine + 2 * stride);
      const uint32_t key = score_wide(now, queries);
      const int32_t entry = mine + lane % 4 * 8 + lane / 4;
      if (lane % 4 < 2 && entry < keys.visible) to[entry] = static_cast<uint16_t>(key);
    }
  }
  /// Scores entries [begin, end), begin a multiple of 16; returns how many candidates are in the buffer.
  FATHOM_DEVICE int stream(const Params& p, int64_t t, int32_t begin, int32_t end) {
    const Keys& keys = choice.keys;
    const int lane = device::lane_index(), warp = device::warp_index();
    int32_t mine = begin + warp * kWideRows;
    int count = 0;
    WideTile tile;
    load_rows(keys, place_rows(keys, p.page_rows, mine), tile);
    WidePlace next = place_rows(keys, p.page_rows, mine + kWideStep);
    if (device::thread_index() == 0) choice.least = 0;
    load_wide_queries(p.a, t, queries);  // while the first rows are on their way
    device::publish_to_products();
    device::sync_block();
    const int32_t group = warp / 4 * (4 * kWideRows);  // where the warpgroup's rows begin among those of the block
    uint16_t* const to = chunk + warp * kWideRows + lane % 4 * 8 + lane / 4;
    FATHOM_UNROLL_1
    for (int32_t first = begin; first < end; first += kWideChunk) {
      FATHOM_UNROLL_1
      for (int row = 0; row < kWideChunk; row += kWideStep, mine += kWideStep) {
        if (first + row + group >= end) continue;  // the same for a whole warpgroup
        const WideTile now = tile;
        load_rows(keys, next, tile);
        next = place_rows(keys, p.page_rows, mine + 2 * kWideStep);
        const uint32_t key = score_wide(now, queries);
        if (lane % 4 < 2) to[row] = static_cast<uint16_t>(key);
      }
      device::sync_block();
      if (count + kWideChunk > kBufferKeys) cut_buffer(count, p.a.topk, choice), count = p.a.topk;
      count = append_chunk<kWideChunk / kThreads>(count, first, end, chunk, choice);
    }
    device::sync_block();
    return count;
  }

 private:
  FATHOM_DEVICE static int32_t first_entry() {
    return device::block_x() * kWideStep + device::warp_index() * kWideRows;
  }
};

}  // namespace fathom::ops::index_select
