// Weights of experts on their way from memory into tensor core operands: e2m1 or e4m3 codes times their scales,
// exactly, as bf16.
//
// A thread reads 16 bytes of row g = lane / 4 and of row g + 8 at a time; the four threads of a row take 64 bytes, a
// unit. The eight codes of one step go in the order (0,4) (1,5) (2,6) (3,7), which costs the fewest instructions, and
// activations are stored in that order (moe_activations.cuh).
//
// Values carry 2^-kHeadroom so that a code of four bits, decoded by one product with a bf16 power of two, stays exact
// for scales from 2^-94 to 2^33; larger scales are taken for 2^33. The sums are multiplied by restore() at the end.
#pragma once

#include <bit>

#include "ops/device/e4m3_decode.h"
#include "ops/device/scalars.cuh"
#include "ops/experts/moe_params.h"
#include "ops/fp4_order.h"

namespace fathom::ops::moe {

using device::Float4;

inline constexpr int kUnitBytes = 64, kScaleUnits = 4, kHeadroom = 32;

constexpr bool is_fp4(ExpertFormat f) {
  return f != ExpertFormat::fp8;
}
/// Units in 128 columns.
constexpr int block_units(ExpertFormat f) {
  return is_fp4(f) ? 1 : 2;
}
/// Groups of 8 codes that a thread has in a unit.
constexpr int unit_steps(ExpertFormat f) {
  return is_fp4(f) ? 4 : 2;
}
/// What is left to multiply sums with.
template <ExpertFormat kFormat>
FATHOM_DEVICE float restore(const Weight& w, int expert) {
  if constexpr (kFormat == ExpertFormat::nvfp4) return w.global[expert] * 256.0f;
  return 4294967296.0f;  // 2^kHeadroom
}

FATHOM_DEVICE uint32_t word(float v) {
  return std::bit_cast<uint32_t>(v);
}

struct Unit {
  Float4 low, high;  // of rows g and g + 8
};

/// The scales of four units for rows g and g + 8. Thread t of a row holds those of unit t.
template <ExpertFormat kFormat>
struct Scales {
  static constexpr int kWords = kFormat == ExpertFormat::nvfp4 ? 2 : 1;
  uint32_t low[kWords], high[kWords];
};

/// 16 rows of one matrix, from the first column of a slice on.
struct Rows {
  const std::byte* codes;  // this thread's first byte of row g
  const std::byte* line;   // of row lane / 8, piece lane % 8
  const uint8_t* scale;    // of row g
};

/// Distances to row g + 8, the same for all matrices that a block multiplies.
struct Pitch {
  int codes, scale;
};

template <ExpertFormat kFormat>
FATHOM_DEVICE Rows find_rows(const Weight& w, int expert, int first_row, int first, int lane) {
  const int row = first_row + lane / 4, e = expert < 0 ? 0 : expert;
  Rows r;
  const std::byte* slice =
      w.codes + e * w.expert_codes + int64_t{first_row} * w.row_bytes + first * (block_units(kFormat) * kUnitBytes);
  r.codes = slice + lane / 4 * w.row_bytes + lane % 4 * 16;
  r.line = slice + lane / 8 * w.row_bytes + lane % 8 * 16;
  r.scale = w.scale + e * w.expert_scale;
  if constexpr (kFormat == ExpertFormat::fp8)
    r.scale += row / kBlock * w.scale_row + first;
  else
    r.scale += int64_t{row} * w.scale_row + first * (kFormat == ExpertFormat::mxfp4 ? 4 : 8);
  return r;
}

FATHOM_DEVICE void load_unit(Unit& u, const Rows& r, const Pitch& pitch, int unit) {
  const std::byte* at = r.codes + unit * kUnitBytes;
  u.low = device::load_once(reinterpret_cast<const Float4*>(at));
  u.high = device::load_once(reinterpret_cast<const Float4*>(at + pitch.codes));
}

/// Where 16 bytes of a row lie in a stage. A read takes 4 pieces of 2 neighbouring rows at once: they must not meet in
/// a bank.
FATHOM_DEVICE int stage_place(int row, int piece) {
  return row * kLineBytes + (piece ^ (row & 1) << 2) * 16;
}

/// Starts to copy 128 bytes of 16 rows to shared memory, whole lines at a time; what lies behind unit `count` reads as
/// 0.
FATHOM_DEVICE void copy_lines(std::byte* to, const Rows& r, const Pitch& pitch, int line, int count, int lane) {
  const std::byte* from = r.line + line * kLineBytes;
  const bool present = 2 * line + lane % 8 / 4 < count;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i)
    device::copy_async_16(to + stage_place(4 * i + lane / 8, lane % 8), present ? from + i * (pitch.codes / 2) : r.line,
                          present);
}

/// Half of what was copied: one unit.
FATHOM_DEVICE void read_unit(Unit& u, const std::byte* from, int half, int lane) {
  from += stage_place(lane / 4, half * 4 + lane % 4);
  u.low = *reinterpret_cast<const Float4*>(from);
  u.high = *reinterpret_cast<const Float4*>(from + 8 * kLineBytes);
}

/// Units first ... first + 3 of the slice, as far as there are `count`.
template <ExpertFormat kFormat>
FATHOM_DEVICE void load_scales(Scales<kFormat>& s, const Rows& r, const Pitch& pitch, int first, int count, int lane) {
  const int unit = first + lane % 4;
  if (unit >= count) return;
  if constexpr (kFormat == ExpertFormat::fp8) {
    s.low[0] = s.high[0] = r.scale[unit / 2];
  } else {
    const uint8_t* at = r.scale + unit * 4 * s.kWords;
    FATHOM_UNROLL
    for (int i = 0; i < s.kWords; ++i) {
      s.low[i] = reinterpret_cast<const uint32_t*>(at)[i];
      s.high[i] = reinterpret_cast<const uint32_t*>(at + pitch.scale)[i];
    }
  }
}

FATHOM_DEVICE uint32_t shuffle_word(uint32_t v, int lane) {
  return word(device::shuffle_from(std::bit_cast<float>(v), lane));
}

/// bf16x2 with exponent field `field` at most 254 in both halves.
FATHOM_DEVICE uint32_t power_pair(uint32_t byte, uint32_t offset) {
  const uint32_t field = byte + offset;
  return (field < 254 ? field : 254) * 0x00800080u;
}

/// Factors of two e4m3 scales in the low half of `both`.
FATHOM_DEVICE void nvfp4_factors(uint32_t both, uint32_t (&factor)[2]) {
  const uint32_t fields =
      (both << 4 & 0x7F0) | (both << 12 & 0x07F00000u) | (both << 8 & 0x8000) | (both << 16 & 0x80000000u);
  constexpr uint32_t kUp = 0x7B007B00u;  // 2^119, twice: fields are values times 2^-120, factors times 2^118
  const uint32_t pair = device::multiply_bf16x2(device::multiply_bf16x2(fields, kUp), kUp);
  factor[0] = device::byte_permute(pair, pair, 0x1010), factor[1] = device::byte_permute(pair, pair, 0x3232);
}

/// The two scales of this thread's codes in a unit, of row g and of row g + 8, for whom cannot keep those of four
/// units.
FATHOM_DEVICE void load_unit_scales(Scales<ExpertFormat::nvfp4>& s, const Rows& r, const Pitch& pitch, int unit,
                                    int lane) {
  const uint8_t* at = r.scale + unit * 8 + lane % 4 * 2;
  s.low[0] = *reinterpret_cast<const uint16_t*>(at);
  s.high[0] = *reinterpret_cast<const uint16_t*>(at + pitch.scale);
}

/// Factors for the first and the second half of this thread's codes in a unit; `words` are those of the unit's thread.
template <ExpertFormat kFormat>
FATHOM_DEVICE void decode_factors(const uint32_t (&words)[Scales<kFormat>::kWords], int source, int lane,
                                  uint32_t (&factor)[2]) {
  if constexpr (kFormat == ExpertFormat::nvfp4) {
    const uint32_t first = shuffle_word(words[0], source), second = shuffle_word(words[1], source);
    const uint32_t both = (lane % 4 < 2 ? first : second) >> lane % 2 * 16;  // two e4m3 scales
    nvfp4_factors(both, factor);
  } else {
    uint32_t byte = shuffle_word(words[0], source);
    if constexpr (kFormat == ExpertFormat::mxfp4) byte = byte >> lane % 4 * 8 & 255;
    factor[0] = factor[1] = power_pair(byte, (is_fp4(kFormat) ? 126 : 120) - kHeadroom);
  }
}

/// The same for rows g and g + 8 of a unit; fp8 rows share a scale.
template <ExpertFormat kFormat>
FATHOM_DEVICE void unit_factors(const Scales<kFormat>& scales, int source, int lane, uint32_t (&low)[2],
                                uint32_t (&high)[2]) {
  decode_factors<kFormat>(scales.low, source, lane, low);
  if constexpr (is_fp4(kFormat))
    decode_factors<kFormat>(scales.high, source, lane, high);
  else
    high[0] = high[1] = low[0];
}

/// Eight e2m1 codes times 2^-126 as pairs (0,4) (1,5) (2,6) (3,7): nine instructions.
FATHOM_DEVICE void spread_fp4(uint32_t codes, uint32_t (&out)[4]) {
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) out[i] = fp4_fields(codes, i);
}

/// The same times `factor`.
FATHOM_DEVICE void decode_fp4(uint32_t codes, uint32_t factor, uint32_t (&out)[4]) {
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) out[i] = device::multiply_bf16x2(fp4_fields(codes, i), factor);
}

/// Eight e4m3 codes, likewise.
FATHOM_DEVICE void decode_fp8(uint32_t first, uint32_t second, uint32_t factor, uint32_t (&out)[4]) {
  const uint32_t a = device::byte_permute(first, second, 0x5410), b = device::byte_permute(first, second, 0x7632);
  out[0] = device::multiply_bf16x2(device::spread_even_codes(a), factor);
  out[1] = device::multiply_bf16x2(device::spread_odd_codes(a), factor);
  out[2] = device::multiply_bf16x2(device::spread_even_codes(b), factor);
  out[3] = device::multiply_bf16x2(device::spread_odd_codes(b), factor);
}

/// Eight e4m3 codes in the order (0,1) (2,3) (4,5) (6,7), that of bf16 rows as they are.
FATHOM_DEVICE void decode_fp8_in_order(uint32_t first, uint32_t second, uint32_t factor, uint32_t (&out)[4]) {
  const uint32_t a = device::byte_permute(first, first, 0x3120), b = device::byte_permute(second, second, 0x3120);
  out[0] = device::multiply_bf16x2(device::spread_even_codes(a), factor);
  out[1] = device::multiply_bf16x2(device::spread_odd_codes(a), factor);
  out[2] = device::multiply_bf16x2(device::spread_even_codes(b), factor);
  out[3] = device::multiply_bf16x2(device::spread_odd_codes(b), factor);
}

/// Step `step` of a thread's 16 bytes.
template <ExpertFormat kFormat, bool kInOrder>
FATHOM_DEVICE void decode_step(const Float4& codes, const uint32_t (&factor)[2], int step, uint32_t (&out)[4]) {
  const uint32_t words[4] = {word(codes.x), word(codes.y), word(codes.z), word(codes.w)};
  if constexpr (is_fp4(kFormat))
    decode_fp4(words[step], factor[step / 2], out);
  else if constexpr (kInOrder)
    decode_fp8_in_order(words[2 * step], words[2 * step + 1], factor[0], out);
  else
    decode_fp8(words[2 * step], words[2 * step + 1], factor[0], out);
}

}  // namespace fathom::ops::moe
