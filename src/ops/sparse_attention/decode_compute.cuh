// The three steps of a tile: partial scores, softmax against a running reference, and the product with V.
#pragma once

#include "ops/device/e4m3_decode.h"
#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_layout.h"
#include "ops/sparse_attention/decode_rows.cuh"

namespace fathom::ops::sparse_decode {

/// Query fragments of a warp: [m-tile][group of 64 channels][step of 16 channels].
template <typename G>
struct Query {
  uint32_t fragment[G::kScoreMTiles][G::kGroupsPerWarp][4][4];
};

/// Which part of the score product this warp does.
template <typename G>
struct ScorePart {
  int first_mtile, slice;
  FATHOM_DEVICE explicit ScorePart(int warp)
      : first_mtile(warp % G::kHeadGroups * G::kScoreMTiles), slice(warp / G::kHeadGroups) {}
  FATHOM_DEVICE int group(int j) const { return slice * G::kGroupsPerWarp + j; }
};

/// Offsets that a thread uses in every tile, computed once.
template <typename G>
struct Offsets {
  int key[G::kGroupsPerWarp], key_scale;  // in a stage: this lane's K piece of each group, and its row's scale bytes
  int value, odd_value, value_scale, odd_value_scale;  // V pieces of rows 2t and 2t+1, and their scale bytes
  int score_store, score_load;                         // partial scores: first column tile; this thread's rows
  int probability_store, probability_load;
  int score_scale, odd_score_scale;  // scale bytes, of group 0 of this warp's, of the rows whose scores a lane holds

  FATHOM_DEVICE explicit Offsets(const Place& at) {
    const ScorePart<G> part(at.warp);
    constexpr bool kV4 = G::kFormat == RowFormat::v4;
    const int key_row = physical_row(at.g) * G::kRowStride, matrix_row = physical_row(at.lane % 8) * G::kRowStride;
    FATHOM_UNROLL
    for (int j = 0; j < G::kGroupsPerWarp; ++j) {
      const int group = part.group(j);
      key[j] = slice_is_fp8(G::kFormat, group) ? key_row + group * kGroup + 16 * at.t
                                               : matrix_row + (kV4 ? kNopeDim : group * kGroup * 2) + at.lane / 8 * 16;
    }
    key_scale = key_row + G::kScaleOffset + part.group(0);
    if (slice_is_fp8(G::kFormat, at.warp)) {
      const int even = physical_row(2 * at.t) * G::kRowStride;
      const int odd = (physical_row(2 * at.t) ^ kOddRowFlip) * G::kRowStride;
      value = even + at.warp * kGroup + 8 * at.g, odd_value = odd + at.warp * kGroup + 8 * at.g;
      value_scale = even + G::kScaleOffset + at.warp, odd_value_scale = odd + G::kScaleOffset + at.warp;
    } else {
      value = physical_row(at.lane % 16) * G::kRowStride + (kV4 ? kNopeDim : at.warp * kGroup * 2) + at.lane / 16 * 16;
      odd_value = value_scale = odd_value_scale = 0;
    }
    score_store = part.slice * G::kScoreBytes + score_offset<G::kTileRows>(part.first_mtile * 16 + at.g, 2 * at.t);
    const int head = at.thread / G::kLanesPerHead, first = at.thread % G::kLanesPerHead * G::kScoresPerThread;
    score_load = score_offset<G::kTileRows>(head, first);
    probability_store = probability_piece<G::kTileRows>(head, first / 8) + first % 8 * 2;
    probability_load = probability_piece<G::kTileRows>(at.lane % 16, at.lane / 16);
    score_scale = physical_row(2 * at.t) * G::kRowStride + G::kScaleOffset + part.group(0);
    odd_score_scale = (physical_row(2 * at.t) ^ kOddRowFlip) * G::kRowStride + G::kScaleOffset + part.group(0);
  }
};

/// A warp's queries as they lie in memory: 64 channels of one head for a lane, 32 bytes of it; of each m-tile heads g
/// (half 0) and g + 8.
template <typename G>
struct RawQuery {
  uint32_t word[G::kScoreMTiles][G::kGroupsPerWarp][2][8];
};

template <typename G>
FATHOM_DEVICE void load_query(const Params& p, const Place& at, int token, int first_head, int half,
                              RawQuery<G>& query) {
  const ScorePart<G> part(at.warp);
  FATHOM_UNROLL
  for (int m = 0; m < G::kScoreMTiles; ++m) {
    FATHOM_UNROLL
    for (int j = 0; j < G::kGroupsPerWarp; ++j) {
      const int group = part.group(j), head = first_head + (part.first_mtile + m) * 16 + half * 8 + at.g;
      uint32_t(&word)[8] = query.word[m][j][half];
      // Beyond the last head: that one again, for results that nobody takes.
      const uint16_t* row =
          p.q + token * p.q_token_stride + (head < p.heads ? head : p.heads - 1) * p.q_head_stride + group * kGroup;
      if (slice_is_fp8(G::kFormat, group)) {  // 16 neighbouring channels
        const auto* from = reinterpret_cast<const device::Float4*>(row + 16 * at.t);
        const device::Float4 v[2] = {from[0], from[1]};
        __builtin_memcpy(word, v, sizeof(word));
      } else {
        FATHOM_UNROLL
        for (int i = 0; i < 8; ++i) word[i] = reinterpret_cast<const uint32_t*>(row)[4 * i + at.t];
      }
    }
  }
}

/// Raw queries -> fragments, in the order of channels in which K is read.
template <typename G>
FATHOM_DEVICE void arrange_query(const Place& at, const RawQuery<G>& raw, Query<G>& query) {
  const ScorePart<G> part(at.warp);
  FATHOM_UNROLL
  for (int m = 0; m < G::kScoreMTiles; ++m) {
    FATHOM_UNROLL
    for (int j = 0; j < G::kGroupsPerWarp; ++j) {
      const bool fp8 = slice_is_fp8(G::kFormat, part.group(j));
      FATHOM_UNROLL
      for (int half = 0; half < 2; ++half) {
        FATHOM_UNROLL
        for (int step = 0; step < 4; ++step) {
          const uint32_t a = raw.word[m][j][half][2 * step], b = raw.word[m][j][half][2 * step + 1];
          // fp8: channels 4 step + {0, 2} and {1, 3}.
          query.fragment[m][j][step][half] = fp8 ? device::byte_permute(a, b, 0x5410) : a;
          query.fragment[m][j][step][half + 2] = fp8 ? device::byte_permute(a, b, 0x7632) : b;
        }
      }
    }
  }
}

/// K fragments of 8 rows x 64 channels: b[2 * step], b[2 * step + 1]. `at` is this lane's piece, `factor` its row's.
template <typename G>
FATHOM_DEVICE void load_keys(const std::byte* at, bool fp8, uint32_t scale, bool wide, uint32_t (&b)[8]) {
  if (fp8) {
    const device::Float4 v = *reinterpret_cast<const device::Float4*>(at);
    uint32_t word[4];
    __builtin_memcpy(word, &v, sizeof(word));
    const uint32_t factor = device::decode_factor(scale);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = device::multiply_bf16x2(device::spread_even_codes(word[i]), factor);
      b[2 * i + 1] = device::multiply_bf16x2(device::spread_odd_codes(word[i]), factor);
    }
    if (wide) {
      FATHOM_UNROLL
      for (int i = 0; i < 8; ++i) b[i] = device::multiply_bf16x2(b[i], device::second_decode_factor(scale));
    }
  } else {
    uint32_t r[4];
    device::load_matrices(r, at);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) b[i] = r[i];
    device::load_matrices(r, at + 64);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) b[4 + i] = r[i];
  }
}

/// Partial scores of one tile over this warp's channels -> shared memory.
template <typename G>
FATHOM_DEVICE void score_tile(const Shared<G>& shared, const Place& place, const Offsets<G>& at, const Query<G>& query,
                              const std::byte* stage, int parity) {
  constexpr int kColumnTiles = G::kTileRows / 8;
  const ScorePart<G> part(place.warp);
  uint32_t scale[G::kGroupsPerWarp][kColumnTiles] = {};
  bool wide = false;
  if constexpr (G::kFormat == RowFormat::v4) {
    uint32_t largest = 0;
    FATHOM_UNROLL
    for (int j = 0; j < G::kGroupsPerWarp; ++j) FATHOM_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      scale[j][n] = static_cast<uint32_t>(stage[at.key_scale + j + 8 * n * G::kRowStride]);
      if (part.group(j) != kRopeGroup) largest = scale[j][n] > largest ? scale[j][n] : largest;
    }
    wide = device::any_lane(largest > device::kLargestOneStepScale);
  }
  float sum[kColumnTiles][G::kScoreMTiles][4] = {};
  FATHOM_UNROLL
  for (int j = 0; j < G::kGroupsPerWarp; ++j) {
    const bool fp8 = slice_is_fp8(G::kFormat, part.group(j));
    if constexpr (G::kMTiles <= 2) {  // registers for two column tiles at a time: more independent products
      uint32_t key[kColumnTiles][8];
      FATHOM_UNROLL
      for (int n = 0; n < kColumnTiles; ++n)
        load_keys<G>(stage + at.key[j] + 8 * n * G::kRowStride, fp8, scale[j][n], wide, key[n]);
      FATHOM_UNROLL
      for (int step = 0; step < 4; ++step) FATHOM_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) FATHOM_UNROLL
      for (int m = 0; m < G::kScoreMTiles; ++m)
        device::mma_bf16(sum[n][m], query.fragment[m][j][step], key[n][2 * step], key[n][2 * step + 1]);
    } else {
      FATHOM_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        uint32_t key[8];
        load_keys<G>(stage + at.key[j] + 8 * n * G::kRowStride, fp8, scale[j][n], wide, key);
        FATHOM_UNROLL
        for (int step = 0; step < 4; ++step) FATHOM_UNROLL
        for (int m = 0; m < G::kScoreMTiles; ++m)
          device::mma_bf16(sum[n][m], query.fragment[m][j][step], key[2 * step], key[2 * step + 1]);
      }
    }
  }
  std::byte* out = shared.scores(parity);
  FATHOM_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) FATHOM_UNROLL
  for (int m = 0; m < G::kScoreMTiles; ++m) FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    // Heads 16 m + 8 half away have the same swizzle, and column tile n flips bits of it.
    auto* to = reinterpret_cast<float*>(out + ((at.score_store ^ n << 5) + (16 * m + 8 * half) * G::kTileRows * 4));
    to[0] = sum[n][m][2 * half], to[1] = sum[n][m][2 * half + 1];
  }
}

/// Running softmax state of one thread: the reference that exponents are taken against (shared by the head's lanes)
/// and this thread's part of the denominator.
struct SoftmaxState {
  float reference = -__builtin_huge_valf(), sum = 0;
  int query = 0;  // packed: which query token the thread's head belongs to
};

/// While scores exceed the reference by less than 2^8, it is kept: probabilities are rounded to fp16, which is
/// relative, so the result is as exact, and the output need not be rescaled.
inline constexpr float kReferenceSlack = 8;

template <int kCount>
struct alignas(kCount * 4) FloatVector {
  float v[kCount];
};
template <int kCount>
struct alignas(kCount * 2) HalfVector {
  uint16_t v[kCount];
};

/// Adds up the partial scores of a tile, writes fp16 probabilities and the factor by which older output shrinks.
template <typename G>
FATHOM_DEVICE void softmax_tile(const Shared<G>& shared, const Place& place, const Offsets<G>& at, const Params& p,
                                int tile, int parity, SoftmaxState& state) {
  constexpr int kCount = G::kScoresPerThread, kLanes = G::kLanesPerHead;
  using Vector = FloatVector<kCount>;
  const std::byte* scores = shared.scores(parity) + at.score_load;
  Vector part[G::kSlices];
  FATHOM_UNROLL
  for (int s = 0; s < G::kSlices; ++s) part[s] = *reinterpret_cast<const Vector*>(scores + s * G::kScoreBytes);
  const int thread = place.thread;
  const Vector bias =
      *reinterpret_cast<const Vector*>(shared.row_bias() + ring_place<G>(tile, thread % kLanes * kCount));

  float score[kCount], most = -__builtin_huge_valf();
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) {
    float sum = part[0].v[i];
    FATHOM_UNROLL
    for (int s = 1; s < G::kSlices; ++s) sum += part[s].v[i];
    if constexpr (kTakesRequests<G>)
      score[i] = std::bit_cast<uint32_t>(bias.v[i]) >> state.query & 1 ? sum * p.score_scale : -__builtin_huge_valf();
    else
      score[i] = sum * p.score_scale + bias.v[i];
    most = score[i] > most ? score[i] : most;
  }
  FATHOM_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const float other = device::shuffle_xor(most, mask);
    most = other > most ? other : most;
  }

  float correction = 1;
  const bool changes = most > state.reference + kReferenceSlack;  // also the first row: reference is -inf
  if (changes) {
    correction = device::exp2_fast(state.reference - most);
    state.reference = most;
    state.sum *= correction;
  }
  const float reference = state.reference == -__builtin_huge_valf() ? 0.0f : state.reference;
  HalfVector<kCount> rounded;
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const float probability = device::exp2_fast(score[i] - reference);
    state.sum += probability;
    rounded.v[i] = static_cast<uint16_t>(device::pack_f16x2(probability, 0.0f));
  }
  *reinterpret_cast<HalfVector<kCount>*>(shared.probabilities(parity) + at.probability_store) = rounded;
  if (thread % kLanes == 0) shared.correction(parity)[thread / kLanes] = correction;
  const bool any = device::any_lane(changes);
  if (place.lane == 0) shared.changed(parity)[place.warp] = any;
}

/// Output fragments of a warp: [m-tile][column tile][4], channels of slice `warp`, in units of 2^(unit - 127).
template <typename G>
struct Output {
  float sum[G::kMTiles][8][4] = {};
  int unit = 0;  // a scale byte; slices of bf16 channels keep kBf16Unit

  FATHOM_DEVICE void scale_by(float factor) {
    FATHOM_UNROLL
    for (int m = 0; m < G::kMTiles; ++m) FATHOM_UNROLL
    for (int n = 0; n < 8; ++n) FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) sum[m][n][i] *= factor;
  }
};

/// 2^exponent, 0 below the fp32 range.
FATHOM_DEVICE float power_of_two(int exponent) {
  return exponent < -126 ? 0.0f : std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// Codes of 16 rows x 64 channels as a lane needs them for V: rows 2t, 2t+1, 2t+8, 2t+9, channels 8g .. 8g+7.
struct ValueCodes {
  uint32_t word[4][2];
  int scale[4];

  template <typename G>
  FATHOM_DEVICE static ValueCodes load(const std::byte* stage, const Offsets<G>& at) {
    ValueCodes c;
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int below = (i >> 1) * 8 * G::kRowStride;
      const uint64_t v = *reinterpret_cast<const uint64_t*>(stage + (i & 1 ? at.odd_value : at.value) + below);
      c.word[i][0] = static_cast<uint32_t>(v), c.word[i][1] = static_cast<uint32_t>(v >> 32);
      c.scale[i] = static_cast<int>(stage[(i & 1 ? at.odd_value_scale : at.value_scale) + below]);
    }
    return c;
  }
  FATHOM_DEVICE int largest_scale() const {
    const int a = scale[0] > scale[1] ? scale[0] : scale[1], b = scale[2] > scale[3] ? scale[2] : scale[3];
    return a > b ? a : b;
  }
  FATHOM_DEVICE int smallest_scale() const {
    const int a = scale[0] < scale[1] ? scale[0] : scale[1], b = scale[2] < scale[3] ? scale[2] : scale[3];
    return a < b ? a : b;
  }
  /// Whether some nonzero code of this lane is too small for fp16 in these units.
  FATHOM_DEVICE bool too_small(int unit) const {
    bool found = false;
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) found |= scale[i] < unit + device::kLowestShiftF16 && (word[i][0] | word[i][1]) != 0;
    return found;
  }
  /// Codes of a pair of rows (k = 0 or 1), channels 4i + {0, 1} and 4i + {2, 3}, interleaved row by row.
  FATHOM_DEVICE uint32_t low(int k, int i) const {
    return device::byte_permute(word[2 * k][i], word[2 * k + 1][i], 0x5410);
  }
  FATHOM_DEVICE uint32_t high(int k, int i) const {
    return device::byte_permute(word[2 * k][i], word[2 * k + 1][i], 0x7632);
  }
  FATHOM_DEVICE static int shift(int scale, int unit) {
    return scale - unit < device::kLowestShiftF16 ? device::kLowestShiftF16 : scale - unit;
  }

  /// fp16 fragments in units of 2^(unit - 127): b[2 * column tile + k].
  FATHOM_DEVICE void decode_f16(int unit, uint32_t (&b)[16]) const {
    FATHOM_UNROLL
    for (int k = 0; k < 2; ++k) {
      const uint32_t factor = device::decode_factor_f16(shift(scale[2 * k], unit), shift(scale[2 * k + 1], unit));
      FATHOM_UNROLL
      for (int i = 0; i < 2; ++i) {
        b[2 * (4 * i) + k] = device::multiply_f16x2(device::spread_even_codes_f16(low(k, i)), factor);
        b[2 * (4 * i + 1) + k] = device::multiply_f16x2(device::spread_odd_codes_f16(low(k, i)), factor);
        b[2 * (4 * i + 2) + k] = device::multiply_f16x2(device::spread_even_codes_f16(high(k, i)), factor);
        b[2 * (4 * i + 3) + k] = device::multiply_f16x2(device::spread_odd_codes_f16(high(k, i)), factor);
      }
    }
  }
  /// bf16 fragments in the same units, for any scale up to the unit.
  FATHOM_DEVICE void decode_bf16(int unit, uint32_t (&b)[16]) const {
    FATHOM_UNROLL
    for (int k = 0; k < 2; ++k) {
      // 2^(scale - unit) as scale byte 127 + scale - unit; far below, the value underflows to nothing anyway.
      const int a = scale[2 * k] - unit + 127, c = scale[2 * k + 1] - unit + 127;
      const uint32_t factor = device::decode_factor(a < 0 ? 0 : a, c < 0 ? 0 : c);
      FATHOM_UNROLL
      for (int i = 0; i < 2; ++i) {
        b[2 * (4 * i) + k] = device::multiply_bf16x2(device::spread_even_codes(low(k, i)), factor);
        b[2 * (4 * i + 1) + k] = device::multiply_bf16x2(device::spread_odd_codes(low(k, i)), factor);
        b[2 * (4 * i + 2) + k] = device::multiply_bf16x2(device::spread_even_codes(high(k, i)), factor);
        b[2 * (4 * i + 3) + k] = device::multiply_bf16x2(device::spread_odd_codes(high(k, i)), factor);
      }
    }
  }
};

inline constexpr int kBf16Unit = 120;                 // output units of bf16 slices, as a scale byte
inline constexpr uint32_t kBf16Factor = 0x43004300u;  // 2^7

/// bf16 channels of 16 rows x 64 channels, times 2^7, as fp16 when all fit (true) or as bf16. Times 2^7, because then
/// fp16 is exact for magnitudes from 2^-21 to 511, which is where a normalised latent lies.
template <typename G>
FATHOM_DEVICE bool load_bf16_values(const std::byte* row, uint32_t (&b)[16]) {
  uint32_t overflow = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    uint32_t r[4];
    device::load_matrices_transposed(r, row + 32 * i);
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) {
      const uint32_t v = device::multiply_bf16x2(r[k], kBf16Factor);
      b[4 * i + k] = device::pack_f16x2(std::bit_cast<float>(v << 16), std::bit_cast<float>(v & 0xFFFF0000u));
      overflow |= (b[4 * i + k] & 0x7FFF7FFFu) + 0x04000400u;
    }
  }
  if (!device::any_lane((overflow & 0x80008000u) != 0)) return true;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    uint32_t r[4];
    device::load_matrices_transposed(r, row + 32 * i);
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) b[4 * i + k] = device::multiply_bf16x2(r[k], kBf16Factor);
  }
  return false;
}

/// An fp16 pair as bf16 pairs whose sum it is (11 bits = 8 + 3).
FATHOM_DEVICE void split_f16x2(uint32_t v, uint32_t* high, uint32_t* rest) {
  float a, b;
  device::unpack_f16x2(v, &a, &b);
  *high = device::pack_bf16x2(a, b);
  *rest = device::pack_bf16x2(a - std::bit_cast<float>(*high << 16), b - std::bit_cast<float>(*high & 0xFFFF0000u));
}

/// Values of 16 rows of an fp8 slice as fp16 (true) or bf16. The output's units follow the largest scale seen, so that
/// fp16 holds the values exactly; steps with a scale thousands of times smaller than that take the bf16 way.
template <typename G>
FATHOM_DEVICE bool load_fp8_values(const std::byte* stage, const Offsets<G>& at, Output<G>& output,
                                   uint32_t (&value)[16]) {
  const ValueCodes codes = ValueCodes::load<G>(stage, at);
  int largest = codes.largest_scale();
  const bool unusual = largest > output.unit + device::kHighestShiftF16 ||
                       codes.smallest_scale() < output.unit + device::kLowestShiftF16;
  if (device::any_lane(unusual)) {
    if (device::any_lane(largest > output.unit + device::kHighestShiftF16)) {
      FATHOM_UNROLL
      for (int mask = 1; mask < 4; mask *= 2) {
        const int other = device::shuffle_xor(largest, mask);
        largest = other > largest ? other : largest;
      }
      output.scale_by(power_of_two(output.unit - largest));
      output.unit = largest;
    }
    if (device::any_lane(codes.too_small(output.unit))) {
      codes.decode_bf16(output.unit, value);
      return false;
    }
  }
  codes.decode_f16(output.unit, value);
  return true;
}

/// O += P V for 16 rows: `probabilities` is this lane's place in the tile, `value` the rows' values as fp16 or bf16.
template <typename G>
FATHOM_DEVICE void add_values(const std::byte* probabilities, bool f16, const uint32_t (&value)[16],
                              Output<G>& output) {
  if (f16) {
    FATHOM_UNROLL
    for (int m = 0; m < G::kMTiles; ++m) {
      uint32_t probability[4];
      device::load_matrices(probability, probabilities + 16 * m * G::kTileRows * 2);
      FATHOM_UNROLL
      for (int n = 0; n < 8; ++n) device::mma_f16(output.sum[m][n], probability, value[2 * n], value[2 * n + 1]);
    }
  } else {
    FATHOM_UNROLL
    for (int m = 0; m < G::kMTiles; ++m) {
      uint32_t probability[4], rest[4];
      device::load_matrices(probability, probabilities + 16 * m * G::kTileRows * 2);
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) split_f16x2(probability[i], &probability[i], &rest[i]);
      FATHOM_UNROLL
      for (int n = 0; n < 8; ++n) {
        device::mma_bf16(output.sum[m][n], probability, value[2 * n], value[2 * n + 1]);
        device::mma_bf16(output.sum[m][n], rest, value[2 * n], value[2 * n + 1]);
      }
    }
  }
}

/// O = correction * O + P V for one tile.
template <typename G>
FATHOM_DEVICE void value_tile(const Shared<G>& shared, const Place& place, const Offsets<G>& at, const std::byte* stage,
                              int parity, Output<G>& output) {
  static_assert(G::kTileRows == 16);
  const auto* changed = reinterpret_cast<const uint32_t*>(shared.changed(parity));
  if ((changed[0] | changed[1]) != 0) {
    const float* correction = shared.correction(parity) + place.g;
    FATHOM_UNROLL
    for (int m = 0; m < G::kMTiles; ++m) {
      const float top = correction[16 * m], bottom = correction[16 * m + 8];
      FATHOM_UNROLL
      for (int n = 0; n < 8; ++n) {
        output.sum[m][n][0] *= top, output.sum[m][n][1] *= top;
        output.sum[m][n][2] *= bottom, output.sum[m][n][3] *= bottom;
      }
    }
  }
  uint32_t value[16];
  const bool f16 = slice_is_fp8(G::kFormat, place.warp) ? load_fp8_values<G>(stage, at, output, value)
                                                        : load_bf16_values<G>(stage + at.value, value);
  add_values<G>(shared.probabilities(parity) + at.probability_load, f16, value, output);
}

}  // namespace fathom::ops::sparse_decode
