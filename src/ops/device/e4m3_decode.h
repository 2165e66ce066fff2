// e4m3 codes -> bf16 or fp16 values with integer instructions and one exact product, for GPUs with and without FP8
// hardware.
//
// A code seeeemmm moved to the bf16 field s0000eeeemmm0000 is its value times 2^-120: normal codes get exponent field
// e, subnormal ones a bf16 subnormal. Multiplying by 2^(scale byte - 127 + 120), a bf16 with exponent field scale byte
// + 120, yields code * 2^(scale byte - 127) exactly while that field fits, for bytes up to 134; larger bytes need the
// second factor. In fp16 the field is s0eeeemmm0000000, the value times 2^-8, and the factor that makes it code *
// 2^shift is exact for shifts from -12 to 6. The codes 0x7F and 0xFF (NaN), which no quantiser writes, decode to +-480.
#pragma once

#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops::device {

inline constexpr uint32_t kLargestOneStepScale = 134;

/// The codes in bytes 1 and 3 of `word`, as two bf16 fields.
FATHOM_HOST_DEVICE inline uint32_t spread_odd_codes(uint32_t word) {
  return (word >> 4 & 0x07F007F0u) | (word & 0x80008000u);
}

/// The codes in bytes 0 and 2 of `word`, as two bf16 fields.
FATHOM_HOST_DEVICE inline uint32_t spread_even_codes(uint32_t word) {
  return (word << 4 & 0x07F007F0u) | (word << 8 & 0x80008000u);
}

FATHOM_HOST_DEVICE inline uint32_t one_step_scale(uint32_t byte) {
  return byte < kLargestOneStepScale ? byte : kLargestOneStepScale;
}

/// bf16x2 factor for two codes of scale byte `byte` (exact alone up to kLargestOneStepScale).
FATHOM_HOST_DEVICE inline uint32_t decode_factor(uint32_t byte) {
  return one_step_scale(byte) * 0x00800080u + 120u * 0x00800080u;
}
/// The same for two codes with scales of their own.
FATHOM_HOST_DEVICE inline uint32_t decode_factor(uint32_t low, uint32_t high) {
  return one_step_scale(low) * 0x80u + one_step_scale(high) * 0x800000u + 120u * 0x00800080u;
}

/// What remains for larger bytes: bf16x2 of 2^max(0, byte - 134).
FATHOM_HOST_DEVICE inline uint32_t second_decode_factor(uint32_t byte) {
  return (byte - one_step_scale(byte)) * 0x00800080u + 127u * 0x00800080u;
}

/// The same codes as fp16 fields.
FATHOM_HOST_DEVICE inline uint32_t spread_odd_codes_f16(uint32_t word) {
  return (word >> 1 & 0x3F803F80u) | (word & 0x80008000u);
}
FATHOM_HOST_DEVICE inline uint32_t spread_even_codes_f16(uint32_t word) {
  return (word << 7 & 0x3F803F80u) | (word << 8 & 0x80008000u);
}

/// The codes in bytes 0, 1 (half 0) or 2, 3 as fp16 fields: values times 2^-8.
FATHOM_HOST_DEVICE inline uint32_t codes_to_f16_fields(uint32_t word, int half) {
  const uint32_t pair = word >> 16 * half, spread = (pair & 0xFFu) << 8 | (pair & 0xFF00u) << 16;
  return (spread >> 1 & 0x3F803F80u) | (spread & 0x80008000u);
}

inline constexpr int kLowestShiftF16 = -12, kHighestShiftF16 = 6;

/// fp16x2 factor that turns fp16 fields into code * 2^shift.
FATHOM_HOST_DEVICE inline uint32_t decode_factor_f16(int low_shift, int high_shift) {
  return static_cast<uint32_t>(low_shift) * 0x400u + static_cast<uint32_t>(high_shift) * 0x4000000u + 23u * 0x04000400u;
}

}  // namespace fathom::ops::device
