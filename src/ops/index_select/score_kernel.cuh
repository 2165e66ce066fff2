// Scores of 16 or 32 entries by one warp on tensor cores, and the entries' rows in flight.
//
// Keys lie on the rows of the products (one or two tiles of 16), heads on the columns. Lane (g, t) = (lane / 4, lane %
// 4) holds of its rows the 32 channels of scale group t, 16 bytes of codes; queries are laid out so that the same order
// of channels meets. Codes become bf16 by shifts and one product: an e2m1 code's three magnitude bits in the bits 8..6
// of a bf16 are its value times 2^-126, subnormal included. Keys carry an extra 2^-63, queries 2^63, which keeps all
// factors in range for scales from 2^-60 to 2^60. Then relu, rounding and the head's weight act on pairs of heads, and
// the sum over heads is a product with ones.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/index_select/select_plan.h"

namespace fathom::ops::index_select {

/// Rows of the cache of one sequence.
struct Keys {
  const std::byte* data;
  const int32_t* pages;
  int64_t stride;
  int32_t page_rows, visible;
};

/// The queries of a token in shared memory, as the products want them.
struct Queries {
  device::Words4 q[kMostHeads / 8][4][32];  // [head tile][word of a lane's codes][lane]: four bf16 pairs
  uint32_t weight[kMostHeads / 2];          // bf16 pairs
};

/// Eight codes -> four bf16 pairs (codes i and i + 4) times 2^-126.
FATHOM_DEVICE void spread_codes(uint32_t w, uint32_t (&pair)[4]) {
  constexpr uint32_t kMagnitude = 0x01C001C0, kSign = 0x80008000;
  pair[0] = (w << 6 & kMagnitude) | (w << 12 & kSign);
  pair[1] = (w << 2 & kMagnitude) | (w << 8 & kSign);
  pair[2] = (w >> 2 & kMagnitude) | (w << 4 & kSign);
  pair[3] = (w >> 6 & kMagnitude) | (w & kSign);
}
/// A bf16 pair of 2^(field - 127).
FATHOM_DEVICE uint32_t power_pair(int field) {
  field = field < 1 ? 1 : field > 254 ? 254 : field;
  return static_cast<uint32_t>(field) << 7 | static_cast<uint32_t>(field) << 23;
}

/// The queries of token t as bf16 pairs, and the weights as they are, `padded` heads of them: zero beyond the last.
/// store(head, group, w, pair) takes the four pairs of word w of a scale group, place(head) says which half of a word
/// of `weights` is the head's. All threads together.
template <typename Place, typename Store>
FATHOM_DEVICE void spread_queries(const IndexSelectArgs& a, int64_t t, int padded, uint32_t* weights,
                                  const Place& place, const Store& store) {
  const int heads = static_cast<int>(a.q.size[1]);
  for (int i = device::thread_index(); i < padded * 4; i += kThreads) {
    const int head = i / 4, group = i % 4;
    uint32_t word[4] = {}, field = 0;
    if (head < heads) {
      FATHOM_UNROLL
      for (int w = 0; w < 4; ++w) word[w] = reinterpret_cast<const uint32_t*>(&a.q(t, head, 0))[4 * group + w];
      field = a.q_scale(t, head, group).bits;
    }
    const uint32_t one = power_pair(253), two = power_pair(static_cast<int>(field) + 63);
    FATHOM_UNROLL
    for (int w = 0; w < 4; ++w) {
      uint32_t pair[4];
      spread_codes(word[w], pair);
      FATHOM_UNROLL
      for (int k = 0; k < 4; ++k) pair[k] = device::multiply_bf16x2(device::multiply_bf16x2(pair[k], one), two);
      store(head, group, w, pair);
    }
  }
  auto* weight = reinterpret_cast<uint16_t*>(weights);
  for (int h = device::thread_index(); h < padded; h += kThreads)
    weight[place(h)] = h < heads ? a.head_weight(t, h).bits : 0;
}

/// Queries and weights of token t into shared memory.
FATHOM_DEVICE void load_queries(const IndexSelectArgs& a, int64_t t, Queries& to) {
  const int padded = (static_cast<int>(a.q.size[1]) + 15) / 16 * 16;
  const auto same = [](int head) { return head; };
  spread_queries(a, t, padded, to.weight, same, [&](int head, int group, int w, const uint32_t(&pair)[4]) {
    to.q[head / 8][w][head % 8 * 4 + group] = {{pair[0], pair[1], pair[2], pair[3]}};
  });
}

FATHOM_DEVICE Keys keys_of(const IndexSelectArgs& a, int64_t t) {
  Keys k;
  k.data = a.keys.data, k.stride = a.keys.stride, k.page_rows = a.keys.page_rows;
  k.pages = &a.pages(a.sequence(t), 0), k.visible = a.visible(t);
  return k;
}
/// Whether codes can be loaded 16 bytes at a time.
FATHOM_DEVICE bool is_aligned(const Keys& k) {
  return ((reinterpret_cast<uintptr_t>(k.data) | static_cast<uintptr_t>(k.stride)) & 15) == 0;
}
FATHOM_DEVICE int32_t slot_of(const Keys& k, int32_t entry) {
  const int32_t page = entry / k.page_rows;
  return k.pages[page] * k.page_rows + entry - page * k.page_rows;
}

/// What a lane holds of the 16 kM entries of a tile: codes of row g + 8 r, group t; the scales of entry `lane`.
template <int kM>
struct Tile {
  device::Words4 code[2 * kM];
  uint32_t scales;
};

/// Where entry first + lane lies; past the last entry, where that one does.
struct RowPlace {
  int32_t number, row;  // of its page, in its page
};
FATHOM_DEVICE RowPlace place_row(const Keys& k, int32_t first) {
  const int lane = device::lane_index();
  const int32_t entry = first + lane < k.visible ? first + lane : k.visible - 1;
  const int32_t page = entry / k.page_rows;
  return {k.pages[page], entry - page * k.page_rows};
}

/// The rows of a tile. Nothing here waits for them.
template <bool kAligned, int kM>
FATHOM_DEVICE void load_tile(const Keys& k, RowPlace at, Tile<kM>& tile) {
  const int lane = device::lane_index(), g = lane / 4, t = lane % 4;
  tile.scales = *reinterpret_cast<const uint32_t*>(k.data + at.number * k.stride + k.page_rows * kIndexCodeBytes +
                                                   at.row * kIndexScaleBytes);
  FATHOM_UNROLL
  for (int r = 0; r < 2 * kM; ++r) {
    const std::byte* codes = k.data + device::shuffle_int(at.number, g + 8 * r) * k.stride +
                             device::shuffle_int(at.row, g + 8 * r) * kIndexCodeBytes + 16 * t;
    if constexpr (kAligned) {
      tile.code[r] = *reinterpret_cast<const device::Words4*>(codes);
    } else {
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) tile.code[r].word[i] = *reinterpret_cast<const uint32_t*>(codes + 4 * i);
    }
  }
}

/// The 16 bits of a score that order as scores do, never 0; -0 is 0.
FATHOM_DEVICE uint32_t key_of(float score) {
  const uint32_t bits = device::pack_bf16x2(0.0f, device::add(score, 0.0f));  // in the upper half
  const uint32_t flipped = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000;
  const uint32_t key = (bits ^ flipped) >> 16;
  return key == 0 ? 1 : key;
}

/// Rows of a tile as factors of products: [tile of 16 rows][step][registers].
template <int kM>
using Rows = uint32_t[kM][8][4];

template <int kM>
FATHOM_DEVICE void spread_tile(const Tile<kM>& tile, Rows<kM>& a) {
  const int lane = device::lane_index();
  FATHOM_UNROLL
  for (int r = 0; r < 2 * kM; ++r) {
    const auto scales = static_cast<uint32_t>(device::shuffle_int(static_cast<int>(tile.scales), lane / 4 + 8 * r));
    const uint32_t factor = power_pair(static_cast<int>(scales >> 8 * (lane % 4) & 255) + 63);
    FATHOM_UNROLL
    for (int w = 0; w < 4; ++w) {
      uint32_t pair[4];
      spread_codes(tile.code[r].word[w], pair);
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) a[r / 2][2 * w + i / 2][r % 2 + i % 2 * 2] = device::multiply_bf16x2(pair[i], factor);
    }
  }
}

/// The key of entry 8 t + g of the tile, for lane (g, t), t < 2 kM. An entry's bits do not depend on kM.
template <int kM>
FATHOM_DEVICE uint32_t score_rows(const Rows<kM>& a, int head_tiles, const Queries& queries) {
  const int lane = device::lane_index(), t = lane % 4;
  constexpr uint32_t kOnes = 0x3F803F80;
  float total[kM][4] = {};
  FATHOM_UNROLL_1
  for (int h = 0; h < head_tiles; h += 2) {
    uint32_t weighted[kM][4];
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      float dot[kM][4] = {};
      FATHOM_UNROLL
      for (int w = 0; w < 4; ++w) {
        const device::Words4 q = queries.q[h + half][w][lane];
        FATHOM_UNROLL
        for (int m = 0; m < kM; ++m) device::mma_bf16(dot[m], a[m][2 * w], q.word[0], q.word[1]);
        FATHOM_UNROLL
        for (int m = 0; m < kM; ++m) device::mma_bf16(dot[m], a[m][2 * w + 1], q.word[2], q.word[3]);
      }
      const uint32_t weight = queries.weight[(h + half) * 4 + t];
      FATHOM_UNROLL
      for (int m = 0; m < kM; ++m) FATHOM_UNROLL
      for (int row = 0; row < 2; ++row)
        weighted[m][2 * half + row] =
            device::multiply_bf16x2(device::pack_relu_bf16x2(dot[m][2 * row], dot[m][2 * row + 1]), weight);
    }
    FATHOM_UNROLL
    for (int m = 0; m < kM; ++m) device::mma_bf16(total[m], weighted[m], kOnes, kOnes);
  }
  if constexpr (kM == 1) return key_of(t == 0 ? total[0][0] : total[0][2]);
  return key_of(t == 0 ? total[0][0] : t == 1 ? total[0][2] : t == 2 ? total[kM - 1][0] : total[kM - 1][2]);
}

}  // namespace fathom::ops::index_select
