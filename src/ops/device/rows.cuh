// Rows of channels held by one warp, for the kernels that write queries and cache rows: loads, RMSNorm, RoPE, Hadamard
// transform, quantisation, page writes. Rounding points are those of ops/exact.h and ops/exact_rows.h.
//
// A KV row of 512 channels lies in a warp as 16 neighbouring channels a lane, an index row of 128 as 4 a lane. All
// lanes of the warp must call together.
#pragma once

#include "ops/device/scalars.cuh"

#include "ops/index_rows.h"
#include "ops/kv_rows.h"

namespace fathom::ops::device {

struct alignas(16) Words4 {
  uint32_t word[4];
};
struct alignas(8) Words2 {
  uint32_t word[2];
};

/// 8 bf16 values from a 16-byte aligned address.
FATHOM_DEVICE void load_8(const bf16* p, float* v) {
  const Words4 w = *reinterpret_cast<const Words4*>(p);
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) v[2 * i] = low_half(w.word[i]), v[2 * i + 1] = high_half(w.word[i]);
}
FATHOM_DEVICE void store_8(bf16* p, const float* v) {
  Words4 w;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) w.word[i] = pack_bf16x2(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<Words4*>(p) = w;
}
FATHOM_DEVICE void load_4(const bf16* p, float* v) {
  const Words2 w = *reinterpret_cast<const Words2*>(p);
  v[0] = low_half(w.word[0]), v[1] = high_half(w.word[0]), v[2] = low_half(w.word[1]), v[3] = high_half(w.word[1]);
}

/// Four e4m3 codes of v[0..4) / scale.
FATHOM_DEVICE uint32_t codes_of(const float* v, float inverse_scale) {
  return pack_e4m3x2(v[0] * inverse_scale, v[1] * inverse_scale) |
         pack_e4m3x2(v[2] * inverse_scale, v[3] * inverse_scale) << 16;
}
template <int kCount>
FATHOM_DEVICE float largest(const float (&v)[kCount]) {
  float most = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) most = fabsf(v[i]) > most ? fabsf(v[i]) : most;
  return most;
}

/// This lane's channels of a row of bf16 values at a multiple of 16 bytes.
FATHOM_DEVICE void load_lane(const bf16* row, float (&v)[16]) {
  load_8(row + 16 * lane_index(), v), load_8(row + 16 * lane_index() + 8, v + 8);
}
FATHOM_DEVICE void load_lane(const bf16* row, float (&v)[4]) {
  load_4(row + 4 * lane_index(), v);
}

/// RMSNorm of the row that a warp holds, kCount channels a lane, with weights w; rounded to bf16.
template <int kCount>
FATHOM_DEVICE void warp_rmsnorm(float (&v)[kCount], const float (&w)[kCount], float eps) {
  double squares = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) squares += static_cast<double>(v[i] * v[i]);  // squares of bf16 values are exact
  const float factor = rms_factor(warp_sum(squares), 32 * kCount, eps);
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) v[i] = round_bf16(multiply(multiply(v[i], factor), w[i]));
}

/// RoPE of the last 64 channels of the row that a warp holds, kCount channels a lane.
template <int kCount>
FATHOM_DEVICE void warp_rope(float (&v)[kCount], Turn mine) {
  constexpr int kLanes = kRopeDim / kCount;  // the last so many lanes hold them
  const int lane = lane_index(), first = (lane - (32 - kLanes)) * (kCount / 2);
  FATHOM_UNROLL
  for (int i = 0; i < kCount / 2; ++i) {
    const int from = (first + i) & 31;
    const Turn t{shuffle_from(mine.cosine, from), shuffle_from(mine.sine, from)};
    if (lane >= 32 - kLanes) rotate(v[2 * i], v[2 * i + 1], t);
  }
}

/// Quantises and writes the KV row that a warp holds.
FATHOM_DEVICE void write_kv_row(const KvPool& pool, RowFormat format, uint32_t slot, const float (&v)[16]) {
  const int lane = lane_index();
  const bool nope = lane < kNopeDim / 16;
  const e8m0 scale = e4m3_scale(group_max(largest(v), kKvGroup / 16));
  const float inverse = reciprocal(scale);
  const uint32_t rows = static_cast<uint32_t>(pool.page_rows), page = slot / rows, row = slot - page * rows;
  std::byte* start = pool.data + page * pool.stride;
  std::byte* data = start + int64_t{row} * (format == RowFormat::bf16 ? 2 * kHeadDim : kV4DataBytes);
  if (format == RowFormat::bf16) {
    float out[16];
    FATHOM_UNROLL
    for (int i = 0; i < 16; ++i) out[i] = nope ? to_float(to_e4m3(v[i] * inverse)) * to_float(scale) : v[i];
    auto* to = reinterpret_cast<bf16*>(data) + 16 * lane;
    store_8(to, out), store_8(to + 8, out + 8);
    return;
  }
  if (nope) {
    Words4 w;
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) w.word[i] = codes_of(v + 4 * i, inverse);
    *reinterpret_cast<Words4*>(data + 16 * lane) = w;
  } else {
    auto* to = reinterpret_cast<bf16*>(data + kNopeDim) + 16 * lane - kNopeDim;
    store_8(to, v), store_8(to + 8, v + 8);
  }
  if (lane % 4 == 0)  // lane 28 writes the pad byte
    start[int64_t{rows} * kV4DataBytes + row * kV4ScaleBytes + lane / 4] =
        static_cast<std::byte>(nope ? scale.bits : 0);
}

/// Hadamard transform of the 128 channels that a warp holds, times 128^-0.5, rounded to bf16.
FATHOM_DEVICE void warp_hadamard(float (&v)[4]) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
  const int lane = lane_index();
  FATHOM_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float other = shuffle_xor(v[i], mask);
      v[i] = lane & mask ? other - v[i] : v[i] + other;
    }
  }
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) v[i] = round_bf16(multiply(v[i], 0.08838834764831845f));
}

/// e2m1 codes of this lane's 4 channels (low nibble first), and the scale of its group of 8 lanes.
FATHOM_DEVICE uint16_t warp_fp4(const float (&v)[4], e8m0& scale) {
  scale = e2m1_scale(group_max(largest(v), kIndexGroup / 4));
  const float inverse = reciprocal(scale);
  uint32_t codes = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) codes |= static_cast<uint32_t>(to_e2m1(v[i] * inverse)) << 4 * i;
  return static_cast<uint16_t>(codes);
}

}  // namespace fathom::ops::device
