// Scores by warpgroup products (sm_90a), for long streams of entries, many heads and pages of a multiple of 16 rows.
//
// A warp has 16 entries of one page at a time as rows of the product, spread from codes to bf16 in registers in the
// same order of channels as in score_kernel.cuh; the queries of all heads lie in shared memory. So a score has the bits
// that it has there. Half of the channels is spread while the products with the other half run, so the registers are
// those of one tile. Rows are asked for two tiles ahead, and where they lie is looked up for 32 tiles at once.
#pragma once

#include "ops/device/mma_fp8.cuh"
#include "ops/index_select/selection.cuh"

namespace fathom::ops::index_select {

inline constexpr int kWideTiles = 8;  // of a warp between two meetings of the block
inline constexpr int kWideStep = kWarps * kWideRows, kWideChunk = kWideTiles * kWideStep;
inline constexpr int kQueryHalf = kMostHeads * 128;  // bytes: all heads, half of the channels

struct WideQueries {
  alignas(1024) std::byte queries[2 * kQueryHalf];  // [half of the channels][head][64] bf16, in 128-byte swizzle
  alignas(16) uint32_t weight[4][kMostHeads / 8];   // bf16 pairs: those of heads 8 j + 2 t, 8 j + 2 t + 1 in [t][j]
};

/// Queries and weights of token t into shared memory. Pair k of word w of a lane (g, t) meets columns 2 t + 8 (k % 2)
/// of step 2 w + k / 2.
FATHOM_DEVICE void load_wide_queries(const IndexSelectArgs& a, int64_t t, WideQueries& to) {
  const auto place = [](int head) { return head / 2 % 4 * (kMostHeads / 4) + head / 8 * 2 + head % 2; };
  spread_queries(a, t, kMostHeads, to.weight[0], place, [&](int head, int group, int w, const uint32_t(&pair)[4]) {
    std::byte* row = to.queries + head * 128;
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int step = 2 * w + k / 2, byte = 32 * (step % 4) + 4 * group + 16 * (k % 2);
      *reinterpret_cast<uint32_t*>(row + step / 4 * kQueryHalf + (byte ^ head % 8 << 4)) = pair[k];
    }
  });
}

/// Where the rows of 32 tiles lie, those of tile i in lane i; past the last entry, of those that have it.
struct WidePlaces {
  uint32_t codes;   // first row, from the beginning of the cache in units of 16 bytes
  uint32_t scales;  // bytes from there to its scales
};
/// For the tiles whose entries begin at `first`, a multiple of 16, and `stride` further each.
FATHOM_DEVICE WidePlaces place_tiles(const Keys& k, Divisor page_rows, int32_t first, int32_t stride) {
  const auto last = static_cast<uint32_t>(k.visible - 1) / kWideRows * kWideRows,
             mine = static_cast<uint32_t>(first) + static_cast<uint32_t>(device::lane_index() * stride),
             entry = mine < last ? mine : last;
  const auto page = static_cast<int32_t>(entry * page_rows.factor >> page_rows.shift);
  const auto rows = static_cast<uint32_t>(k.page_rows), row = entry - static_cast<uint32_t>(page) * rows;
  const auto pages = static_cast<uint32_t>(k.pages[page]) * static_cast<uint32_t>(k.stride / 16);
  return {pages + row * (kIndexCodeBytes / 16), rows * kIndexCodeBytes - row * (kIndexCodeBytes - kIndexScaleBytes)};
}

/// Codes and scales of group t of the rows g and g + 8.
struct WideTile {
  device::Words4 code[2];
  uint32_t scale[2];
};
/// Asks for those of tile i. `cache`: this lane's place among the codes of the first 16 rows.
FATHOM_DEVICE void load_rows(const std::byte* cache, WidePlaces places, uint32_t i, WideTile& to) {
  const auto told = [&](uint32_t v) {
    return static_cast<uint32_t>(device::shuffle_int(static_cast<int>(v), static_cast<int>(i % 32)));
  };
  const int lane = device::lane_index(), mine = lane / 4 * (kIndexCodeBytes - kIndexScaleBytes) + lane % 4 * 15;
  const std::byte* codes = cache + uint64_t{told(places.codes)} * 16;
  const std::byte* scales = codes + (told(places.scales) - static_cast<uint32_t>(mine));
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r) {
    to.code[r] = *reinterpret_cast<const device::Words4*>(codes + 8 * r * kIndexCodeBytes);
    to.scale[r] = static_cast<uint32_t>(scales[8 * r * kIndexScaleBytes]);
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

/// Half of a tile's channels, two words of the codes of two rows, as factors of four products.
using WideHalf = uint32_t[4][4];
struct WideWords {
  uint32_t word[2][2];  // [row][word]
  uint32_t factor[2];   // bf16 pair of the row's scale
};
FATHOM_DEVICE void spread_half(const WideWords& words, WideHalf& a) {
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r) FATHOM_UNROLL
  for (int w = 0; w < 2; ++w) {
    uint32_t pair[4];
    spread_codes_wide(words.word[r][w], pair);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) a[2 * w + i / 2][r + i % 2 * 2] = device::multiply_bf16x2(pair[i], words.factor[r]);
  }
}
/// Starts the products of that half with all heads.
template <int kHalf>
FATHOM_DEVICE void multiply_half(float (&dot)[kMostHeads / 2], const WideHalf& a, const WideQueries& shared) {
  const device::MatrixStart queries = device::matrix_start(shared.queries);
  FATHOM_UNROLL
  for (int step = 0; step < 4; ++step)
    device::multiply_rows_bf16<kMostHeads / 8>(
        dot, a[step], device::describe_matrix_behind<16, 1024>(queries, kHalf * kQueryHalf + step * 32),
        kHalf > 0 || step > 0);
  device::multiply_commit();
}
/// relu of the products, rounded, pairs of heads: [pair of 8 heads][rows g and g + 8 of each].
using WidePairs = uint32_t[kMostHeads / 16][4];
FATHOM_DEVICE void round_products(const float (&dot)[kMostHeads / 2], WidePairs& pair) {
  FATHOM_UNROLL
  for (int i = 0; i < kMostHeads / 4; ++i) pair[i / 4][i % 4] = device::pack_relu_bf16x2(dot[2 * i], dot[2 * i + 1]);
}
/// The key of entry g of the tile for t = 0, g + 8 for the others.
FATHOM_DEVICE uint32_t key_of_heads(const WidePairs& pair, const WideQueries& shared) {
  const int t = device::lane_index() % 4;
  constexpr uint32_t kOnes = 0x3F803F80;
  float total[4] = {};
  device::Words4 weight[2];
  FATHOM_UNROLL
  for (int i = 0; i < 2; ++i) weight[i] = *reinterpret_cast<const device::Words4*>(&shared.weight[t][4 * i]);
  FATHOM_UNROLL
  for (int h = 0; h < kMostHeads / 16; ++h) {
    uint32_t weighted[4];
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i)
      weighted[i] = device::multiply_bf16x2(pair[h][i], weight[h / 2].word[h % 2 * 2 + i / 2]);
    device::mma_bf16(total, weighted, kOnes, kOnes);
  }
  return key_of(t == 0 ? total[0] : total[2]);
}

/// The tiles of a warp, `stride` entries apart. The four warps of a warpgroup do the same together.
class WideTiles {
 public:
  /// Asks for the first rows; tiles from `end` on are not read. `places`: of the tiles from `first` on.
  FATHOM_DEVICE WideTiles(const Keys& keys, WidePlaces places, int32_t first, int32_t stride, int32_t end)
      : keys_(keys),
        cache_(keys.data + device::lane_index() / 4 * kIndexCodeBytes + device::lane_index() % 4 * 16),
        places_(places),
        stride_(stride),
        end_(end),
        at_(first) {
    load_rows(cache_, places_, 0, rows_);
    if (at_ + stride_ < end_) load_rows(cache_, places_, 1, second_);
  }
  /// Once the queries are there, before the first score.
  FATHOM_DEVICE void begin() {
    spread_front();
    rows_ = second_;
  }
  /// Scores the tiles before `until`; use(entry, key) has the keys as key_of_heads() gives them, `entry` the first of a
  /// tile. (The compiler moves arithmetic to where no products run, unless there is a branch between: hence the order.)
  template <typename Use>
  FATHOM_DEVICE void score(Divisor page_rows, const WideQueries& queries, int32_t until, const Use& use) {
    until = until < end_ ? until : end_;
    WidePairs pair;
    bool scored = false;
    const auto finish = [&] {
      if (scored) use(at_ - stride_, key_of_heads(pair, queries));
    };
    FATHOM_UNROLL_1
    for (; at_ < until; at_ += stride_) {
      float dot[kMostHeads / 2];
      WideHalf back;
      device::multiply_begin();
      multiply_half<0>(dot, front_, queries);
      finish();
      spread_half(back_, back);
      device::multiply_begin();
      multiply_half<1>(dot, back, queries);
      ++number_;
      const int32_t ahead = at_ + 2 * stride_;
      if (number_ % 32 == 31 && ahead < end_) places_ = place_tiles(keys_, page_rows, ahead, stride_);
      device::multiply_wait<1>();
      spread_front();
      if (ahead < end_) load_rows(cache_, places_, number_ + 1, rows_);
      device::multiply_wait<0>();
      round_products(dot, pair);
      scored = true;
    }
    finish();
  }

 private:
  /// The first half of the rows that are there, of the next tile; the other half is kept.
  FATHOM_DEVICE void spread_front() {
    WideWords front;
    FATHOM_UNROLL
    for (int r = 0; r < 2; ++r) {
      const uint32_t field = rows_.scale[r] + 63;
      front.factor[r] = back_.factor[r] = (field < 254 ? field : 254) * 0x00800080;
      FATHOM_UNROLL
      for (int w = 0; w < 2; ++w)
        front.word[r][w] = rows_.code[r].word[w], back_.word[r][w] = rows_.code[r].word[2 + w];
    }
    spread_half(front, front_);
  }

  const Keys& keys_;
  const std::byte* cache_;
  WidePlaces places_;
  int32_t stride_, end_, at_;  // at_: first entry of the next tile
  uint32_t number_ = 0;        // of the next tile
  WideTile rows_ = {};         // on their way, of the tile after the next one
  WideTile second_ = {};       // until begin()
  WideHalf front_;             // half of the next one
  WideWords back_;             // the other half
};

/// Shared memory of a block.
struct WideScan {
  static constexpr int kMostFew = kWrittenEntries;
  using First = WidePlaces;
  WideQueries queries;
  alignas(8) uint16_t chunk[kWideChunk];
  Selection choice;

  FATHOM_DEVICE static First begin(const Params& p, const Keys& keys, int blocks) {
    return place_tiles(keys, p.page_rows, first_entry(), blocks * kWideStep);
  }
  /// Writes this block's share of the keys, and the largest of each tile.
  FATHOM_DEVICE void write_keys(const Params& p, int64_t t, int blocks, First first, uint16_t* to) {
    const Keys& keys = choice.keys;
    const int lane = device::lane_index();
    const int32_t visible = keys.visible, end = end_of_group(visible);
    WideTiles tiles(keys, first, first_entry(), blocks * kWideStep, end);
    load_wide_queries(p.a, t, queries);
    device::publish_to_products();
    device::sync_block();
    tiles.begin();
    uint16_t* const mine = to + lane % 4 * 8 + lane / 4;
    uint16_t* const largest = p.largest + t * (p.keys_each / kWideRows);
    tiles.score(p.page_rows, queries, end, [&](int32_t entry, uint32_t key) {
      const bool seen = entry + (lane % 4 ? 8 : 0) + lane / 4 < visible;
      const uint32_t most = device::largest_of_warp(seen ? key : 0);
      if (lane % 4 < 2 && seen) mine[entry] = static_cast<uint16_t>(key);
      if (lane == 0 && entry < visible) largest[entry / kWideRows] = static_cast<uint16_t>(most);
    });
  }
  /// Scores entries [begin, end), begin a multiple of 16; returns how many candidates are in the buffer.
  FATHOM_DEVICE int stream(const Params& p, int64_t t, int32_t begin, int32_t end) {
    const Keys& keys = choice.keys;
    const int lane = device::lane_index(), warp = device::warp_index();
    const int32_t mine = begin + warp * kWideRows, group_end = end_of_group(end);
    int count = 0;
    WideTiles tiles(keys, place_tiles(keys, p.page_rows, mine, kWideStep), mine, kWideStep, group_end);
    if (device::thread_index() == 0) choice.least = 0;
    load_wide_queries(p.a, t, queries);  // while the first rows are on their way
    device::publish_to_products();
    device::sync_block();
    tiles.begin();
    uint16_t* const to = chunk + lane % 4 * 8 + lane / 4;
    FATHOM_UNROLL_1
    for (int32_t first = begin; first < end; first += kWideChunk) {
      tiles.score(p.page_rows, queries, first + kWideChunk, [&](int32_t entry, uint32_t key) {
        if (lane % 4 < 2) to[entry - first] = static_cast<uint16_t>(key);
      });
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
  /// `end` as it is for this warp's tiles, so that the warps of a warpgroup do the same number.
  FATHOM_DEVICE static int32_t end_of_group(int32_t end) { return end + device::warp_index() % 4 * kWideRows; }
};

}  // namespace fathom::ops::index_select
