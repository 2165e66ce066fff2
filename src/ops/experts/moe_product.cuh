// The product at the heart of the expert kernels: 2 x 16 rows of weights times the tokens of a tile.
//
// Weights are the 16-row side of the tensor core tile, tokens the 8-column side. A warp owns its rows; codes go from
// memory straight to registers, kDepth units ahead, and become bf16 there. With few tokens a warp has one slice of the
// columns, and slices meet in shared memory. With many it goes through all slices, one after the other, so that more
// rows of a block share the activations.
#pragma once

#include "ops/experts/moe_activations.cuh"

namespace fathom::ops::moe {

inline constexpr int kDepth = 2;                    // divides kScaleUnits
inline constexpr int kPartialRow = kGroupRows + 4;  // floats; the 4 spread a store over all banks

constexpr bool takes_all_slices(int tiles) {
  return tiles == 8;
}

/// What a warp multiplies: 16 rows of two matrices, or 2 x 16 rows of one.
struct Source {
  Rows rows[2];
  Pitch pitch;
  int count;                // units of the slice, or of all slices
  int blocks, log2_slices;  // of a row
};

template <ExpertFormat kFormat, int kTiles>
struct Product {
  static constexpr bool kAllSlices = takes_all_slices(kTiles);
  Unit unit[kDepth][2];
  Scales<kFormat> scales[2];
  float sum[2][kTiles][4];
  float total[2][kAllSlices ? kTiles : 1][4];  // of the slices that are done

  /// Starts the first loads.
  FATHOM_DEVICE void begin(const Source& s, int lane) {
    FATHOM_UNROLL
    for (int i = 0; i < kDepth; ++i)
      if (i < s.count) load(i, i, s);
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      scales[m] = {};
      load_scales(scales[m], s.rows[m], s.pitch, 0, s.count, lane);
      clear(sum[m]);
      if constexpr (kAllSlices) clear(total[m]);
    }
  }

  /// Goes through the columns. `tokens`: of the tile, the same for the whole block.
  template <typename X>
  FATHOM_DEVICE void run(const Source& s, X& x, int tokens, int lane) {
    if constexpr (kTiles == 1) {
      run_live<1>(s, x, lane);
    } else if constexpr (kTiles == 2) {
      if (tokens <= 8)
        run_live<1>(s, x, lane);
      else
        run_live<2>(s, x, lane);
    } else {
      if (tokens <= 16)
        run_live<2>(s, x, lane);
      else if (tokens <= 32)
        run_live<4>(s, x, lane);
      else if (tokens <= 48)
        run_live<6>(s, x, lane);
      else
        run_live<8>(s, x, lane);
    }
  }

  FATHOM_DEVICE const float (&result() const)[2][kTiles][4] {
    if constexpr (kAllSlices)
      return total;
    else
      return sum;
  }

 private:
  static FATHOM_DEVICE void clear(float (&v)[kTiles][4]) {
    FATHOM_UNROLL
    for (int j = 0; j < kTiles; ++j) v[j][0] = v[j][1] = v[j][2] = v[j][3] = 0;
  }

  /// Ends a slice.
  FATHOM_DEVICE void fold() {
    if constexpr (kAllSlices) {
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) {
        FATHOM_UNROLL
        for (int j = 0; j < kTiles; ++j) {
          FATHOM_UNROLL
          for (int i = 0; i < 4; ++i) total[m][j][i] += sum[m][j][i];
        }
        clear(sum[m]);
      }
    }
  }

  FATHOM_DEVICE void load(int slot, int at, const Source& s) {
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) load_unit(unit[slot][m], s.rows[m], s.pitch, at);
  }

  /// One unit times the first 8 kLive tokens.
  template <int kLive, typename X>
  FATHOM_DEVICE void multiply(const Unit (&u)[2], int source, int at, const X& x, int lane) {
    uint32_t low[2][2], high[2][2];
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      decode_factors<kFormat>(scales[m].low, source, lane, low[m]);
      if constexpr (is_fp4(kFormat))
        decode_factors<kFormat>(scales[m].high, source, lane, high[m]);
      else
        high[m][0] = low[m][0];
    }
    FATHOM_UNROLL
    for (int step = 0; step < unit_steps(kFormat); ++step) {
      const std::byte* from = x.template step<kFormat>(at, step, lane);
      uint32_t a[2][2][4];  // [matrix][rows g, g + 8][pair]
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) {
        decode_step<kFormat, X::kInOrder>(u[m].low, low[m], step, a[m][0]);
        decode_step<kFormat, X::kInOrder>(u[m].high, high[m], step, a[m][1]);
      }
      FATHOM_UNROLL
      for (int j = 0; j < kLive; ++j) {
        const Float4 b = *reinterpret_cast<const Float4*>(from + x.row(j));
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m) {
          const uint32_t first[4] = {a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1]};
          device::mma_bf16(sum[m][j], first, word(b.x), word(b.y));
          const uint32_t second[4] = {a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3]};
          device::mma_bf16(sum[m][j], second, word(b.z), word(b.w));
        }
      }
    }
  }

  template <int kLive, typename X>
  FATHOM_DEVICE void run_live(const Source& s, X& x, int lane) {
    int slice = 0, slice_end = s.count;
    if constexpr (kAllSlices) slice_end = first_block(s.blocks, s.log2_slices, 1) * block_units(kFormat);
    FATHOM_UNROLL_1
    for (int base = 0; base < s.count; base += kScaleUnits) {
      Scales<kFormat> next[2] = {};
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) load_scales(next[m], s.rows[m], s.pitch, base + kScaleUnits, s.count, lane);
      FATHOM_UNROLL
      for (int i = 0; i < kScaleUnits; ++i) {
        const int at = base + i;
        if (at >= s.count) continue;
        if (kAllSlices && at == slice_end) {
          fold();
          slice_end = first_block(s.blocks, s.log2_slices, ++slice + 1) * block_units(kFormat);
        }
        x.template enter<kFormat>(at);
        multiply<kLive>(unit[i % kDepth], (lane & ~3) + i, at, x, lane);
        if (at + kDepth < s.count) load(i % kDepth, at + kDepth, s);
      }
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) scales[m] = next[m];
    }
    fold();
  }
};

/// Where a warp stands in its block.
struct Place {
  int lane, slice, set, log2_sets, slices;

  FATHOM_DEVICE Place(int log2_slices, int log2_row_sets, bool all_slices) {
    const int warp = device::uniform(device::warp_index());
    lane = device::lane_index(), log2_sets = log2_row_sets, slices = all_slices ? 1 : 1 << log2_slices;
    slice = warp >> log2_sets, set = warp & ((1 << log2_sets) - 1);
  }
  FATHOM_DEVICE int threads() const { return 32 * slices << log2_sets; }
  /// The first block of columns of this warp, and how many it has.
  FATHOM_DEVICE int first(int blocks, int log2_slices) const { return first_block(blocks, log2_slices, slice); }
  FATHOM_DEVICE int count(int blocks, int log2_slices) const {
    return slices == 1 ? blocks : first_block(blocks, log2_slices, slice + 1) - first(blocks, log2_slices);
  }
};

/// Multiplies a tile and leaves the sums in shared memory. `offset_of(i)`: where the row of token i begins, in bytes
/// from those of `from`; columns without a token repeat the last one, and nobody reads their sums.
template <ExpertFormat kFormat, int kTiles, typename From, typename Offset>
FATHOM_DEVICE void multiply_tile(Product<kFormat, kTiles>& product, const Source& source, const From& from, int tokens,
                                 const Place& place, std::byte* shared, const Offset& offset_of) {
  if constexpr (takes_all_slices(kTiles)) {
    auto* offset = reinterpret_cast<uint32_t*>(shared + kStages * kStageBytes);
    if (device::thread_index() < tokens) offset[device::thread_index()] = offset_of(device::thread_index());
    device::sync_block();
    Staged<From> x{from, shared, offset, tokens, source.count / block_units(kFormat), place.threads()};
    x.begin();
    product.run(source, x, tokens, place.lane);
    device::copy_async_wait<0>();
    device::sync_block();  // sums take the place of the ring
  } else {
    Cached<kTiles, From> x{from, {}};
    FATHOM_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      const int i = 8 * j + place.lane / 4;
      x.offset[j] = offset_of(i < tokens ? i : tokens - 1);
    }
    product.run(source, x, tokens, place.lane);
  }
}

/// Partial sums in shared memory: [slice][set][matrix][token][row].
template <int kTiles>
struct Partial {
  static constexpr int kMatrix = 8 * kTiles * kPartialRow;
  float* at;

  FATHOM_DEVICE void put(const Place& place, const float (&sum)[2][kTiles][4]) const {
    float* to = at + (((place.slice << place.log2_sets) + place.set) * 2) * kMatrix + place.lane / 4;
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      FATHOM_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        float* quad = to + m * kMatrix + (8 * j + place.lane % 4 * 2) * kPartialRow;
        quad[0] = sum[m][j][0], quad[kPartialRow] = sum[m][j][1];
        quad[8] = sum[m][j][2], quad[kPartialRow + 8] = sum[m][j][3];
      }
    }
  }

  /// The sums of all slices, in order, for rows `row` and `row` + 1 of a set.
  FATHOM_DEVICE void pair(const Place& place, int set, int matrix, int token, int row, float (&out)[2]) const {
    const float* from = at + (set * 2 + matrix) * kMatrix + token * kPartialRow + row;
    out[0] = out[1] = 0;
    for (int s = 0; s < place.slices; ++s, from += (kMatrix * 2) << place.log2_sets)
      out[0] += from[0], out[1] += from[1];
  }
};

}  // namespace fathom::ops::moe
