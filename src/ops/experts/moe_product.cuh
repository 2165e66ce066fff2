// The product at the heart of the expert kernels: 2 x 16 rows of weights times the tokens of a tile.
//
// Weights are the 16-row side of the tensor core tile, tokens the 8-column side. A warp owns its rows; codes become
// bf16 in registers. With few tokens a warp has one slice of the columns, its weights wait in a ring of its own in
// shared memory, and slices meet there at the end. With many it goes through all slices, one after the other, so that
// more rows of a block share the activations; weights go to registers directly.
#pragma once

#include "ops/experts/moe_activations.cuh"

namespace fathom::ops::moe {

inline constexpr int kDepth = 2;                    // units in registers at most; divides kScaleUnits
inline constexpr int kPartialRow = kGroupRows + 4;  // floats; the 4 spread a store over all banks

constexpr bool takes_all_slices(int tiles) {
  return tiles > 2;
}

/// What a warp multiplies: 16 rows of two matrices, or 2 x 16 rows of one.
struct Source {
  Rows rows[2];
  Pitch pitch;
  int count;                // units of the slice, or of all slices
  int blocks, log2_slices;  // of a row
};

/// `kRing`: weights go through shared memory; otherwise straight to registers.
template <ExpertFormat kFormat, int kTiles, bool kRing = !takes_all_slices(kTiles)>
struct Product {
  static constexpr bool kAllSlices = takes_all_slices(kTiles);
  static constexpr int kUnits =
      kRing || kAllSlices ? 1 : kDepth;  // in registers; sums of 64 tokens leave no room for 2
  static constexpr bool kUnitScales = kAllSlices && kFormat == ExpertFormat::nvfp4;
  Unit unit[kUnits][2];
  std::byte* ring;  // of the warp
  Scales<kFormat> scales[2];
  float sum[2][kTiles][4];
  float total[2][kAllSlices ? kTiles : 1][4];  // of the slices that are done

  /// Starts the first loads. `shared`: of the block.
  FATHOM_DEVICE void begin(const Source& s, std::byte* shared, int lane) {
    if constexpr (!kRing) {
      FATHOM_UNROLL
      for (int i = 0; i < kUnits; ++i)
        if (i < s.count) load(i, i, s);
    } else {
      ring = shared + device::warp_index() * kWeightRing;
      FATHOM_UNROLL
      for (int i = 0; i < kWeightStages - 1; ++i) copy(i, i, s, lane);
    }
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      scales[m] = {};
      if constexpr (!kUnitScales) load_scales(scales[m], s.rows[m], s.pitch, 0, s.count, lane);
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
        run_slices<2>(s, x, lane);
      else if (tokens <= 32)
        run_slices<4>(s, x, lane);
      else if (kTiles == 6 || tokens <= 48)
        run_slices<6>(s, x, lane);
      else
        run_slices<kTiles>(s, x, lane);
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

  /// Starts to bring unit `at` to registers.
  FATHOM_DEVICE void load(int slot, int at, const Source& s) {
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) load_unit(unit[slot][m], s.rows[m], s.pitch, at);
  }
  /// Starts to bring units 2 line and 2 line + 1 to a stage of the ring.
  FATHOM_DEVICE void copy(int stage, int line, const Source& s, int lane) {
    if (2 * line < s.count) {
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m)
        copy_lines(ring + (2 * stage + m) * kMatrixBytes, s.rows[m], s.pitch, line, s.count, lane);
    }
    device::copy_async_commit();
  }

  static constexpr int kSteps = unit_steps(kFormat);

  template <int kLive, typename X>
  static FATHOM_DEVICE void read_activations(Float4 (&b)[kSteps][kLive], const X& x, int at, int lane) {
    FATHOM_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const std::byte* from = x.template step<kFormat>(at, step, lane);
      FATHOM_UNROLL
      for (int j = 0; j < kLive; ++j) b[step][j] = *reinterpret_cast<const Float4*>(from + x.row(j));
    }
  }

  /// Half of a step: 16 of its 32 columns.
  template <int kHalf>
  static FATHOM_DEVICE void multiply_half(float (&to)[4], const uint32_t (&a)[2][4], const Float4& b) {
    const uint32_t quad[4] = {a[0][2 * kHalf], a[1][2 * kHalf], a[0][2 * kHalf + 1], a[1][2 * kHalf + 1]};
    device::mma_bf16(to, quad, word(kHalf ? b.z : b.x), word(kHalf ? b.w : b.y));
  }

  /// One unit times the first 8 kLive tokens. `b`: their activations, where they have been read already.
  template <int kLive, typename X>
  FATHOM_DEVICE void multiply(const Unit (&u)[2], int source, int at, const X& x, const Float4 (*b)[kLive], int lane) {
    uint32_t low[2][2], high[2][2];
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      if constexpr (kUnitScales) {
        nvfp4_factors(scales[m].low[0], low[m]), nvfp4_factors(scales[m].high[0], high[m]);
        continue;
      }
      unit_factors<kFormat>(scales[m], source, lane, low[m], high[m]);
    }
    FATHOM_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[2][2][4];  // [matrix][rows g, g + 8][pair]
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) {
        decode_step<kFormat, X::kInOrder>(u[m].low, low[m], step, a[m][0]);
        decode_step<kFormat, X::kInOrder>(u[m].high, high[m], step, a[m][1]);
      }
      if constexpr (kAllSlices) {
        const std::byte* from = x.template step<kFormat>(at, step, lane);
        FATHOM_UNROLL
        for (int j = 0; j < kLive; ++j) {
          const Float4 v = *reinterpret_cast<const Float4*>(from + x.row(j));
          multiply_half<0>(sum[0][j], a[0], v), multiply_half<0>(sum[1][j], a[1], v);
          multiply_half<1>(sum[0][j], a[0], v), multiply_half<1>(sum[1][j], a[1], v);
        }
      } else {
        FATHOM_UNROLL
        for (int j = 0; j < kLive; ++j) {
          multiply_half<0>(sum[0][j], a[0], b[step][j]), multiply_half<0>(sum[1][j], a[1], b[step][j]);
          multiply_half<1>(sum[0][j], a[0], b[step][j]), multiply_half<1>(sum[1][j], a[1], b[step][j]);
        }
      }
    }
  }

  template <int kLive, typename X>
  FATHOM_DEVICE void run_live(const Source& s, X& x, int lane) {
    int stage = 0;
    constexpr bool kReadsAhead = kRing && kLive == 1;  // more would not fit into registers
    Float4 ahead[kSteps][kLive] = {};                  // activations of the next unit
    if constexpr (kReadsAhead) read_activations<kLive>(ahead, x, 0, lane);
    FATHOM_UNROLL_1
    for (int base = 0; base < s.count; base += kScaleUnits) {
      Scales<kFormat> next[2] = {};
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) load_scales(next[m], s.rows[m], s.pitch, base + kScaleUnits, s.count, lane);
      FATHOM_UNROLL
      for (int i = 0; i < kScaleUnits; ++i) {
        const int at = base + i;
        if (at >= s.count) continue;
        Float4 b[kSteps][kLive];
        if constexpr (kReadsAhead) {
          FATHOM_UNROLL
          for (int step = 0; step < kSteps; ++step) b[step][0] = ahead[step][0];
        }
        if constexpr (kRing) {
          if (i % 2 == 0) {
            device::copy_async_wait<kWeightStages - 2>();
            device::sync_warp();  // the lines are there, and everybody has done with those before
            copy(stage == 0 ? kWeightStages - 1 : stage - 1, at / 2 + kWeightStages - 1, s, lane);
          }
          FATHOM_UNROLL
          for (int m = 0; m < 2; ++m) read_unit(unit[0][m], ring + (2 * stage + m) * kMatrixBytes, i % 2, lane);
          if (i % 2 == 1) stage = stage + 1 == kWeightStages ? 0 : stage + 1;
        }
        if constexpr (!kReadsAhead) read_activations<kLive>(b, x, at, lane);
        if (kReadsAhead && at + 1 < s.count) read_activations<kLive>(ahead, x, at + 1, lane);
        multiply<kLive>(unit[i % kUnits], (lane & ~3) + i, at, x, b, lane);
        if (!kRing && at + kUnits < s.count) load(i % kUnits, at + kUnits, s);
      }
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) scales[m] = next[m];
    }
  }

  /// The same for all slices, one after the other.
  template <int kLive, typename X>
  FATHOM_DEVICE void run_slices(const Source& s, X& x, int lane) {
    int slice = 0, slice_end = first_block(s.blocks, s.log2_slices, 1) * block_units(kFormat);
    FATHOM_UNROLL_1
    for (int at = 0; at < s.count; ++at) {
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) {
        if constexpr (kUnitScales)
          load_unit_scales(scales[m], s.rows[m], s.pitch, at, lane);
        else if (at > 0 && at % kScaleUnits == 0)  // no registers to read them ahead
          load_scales(scales[m], s.rows[m], s.pitch, at, s.count, lane);
      }
      if (at == slice_end) {
        fold();
        slice_end = first_block(s.blocks, s.log2_slices, ++slice + 1) * block_units(kFormat);
      }
      x.template enter<kFormat>(at);
      const Float4(*none)[kLive] = nullptr;
      multiply<kLive>(unit[0], (lane & ~3) + at % kScaleUnits, at, x, none, lane);
      if (at + 1 < s.count) load(0, at + 1, s);
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
template <ExpertFormat kFormat, int kTiles, bool kRing, typename From, typename Offset>
FATHOM_DEVICE void multiply_tile(Product<kFormat, kTiles, kRing>& product, const Source& source, const From& from,
                                 int tokens, const Place& place, std::byte* shared, const Offset& offset_of) {
  if constexpr (takes_all_slices(kTiles)) {
    Staged<From> x{from, shared, tokens, source.count / block_units(kFormat), place.threads()};
    if (device::thread_index() < tokens) x.offsets()[device::thread_index()] = offset_of(device::thread_index());
    device::sync_block();
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
    device::sync_block();  // sums take the place of weights
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
