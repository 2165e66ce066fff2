// The small floating-point formats of the checkpoint and the cache, as bit conversions that work on host and device.
//
//   bf16   1 sign, 8 exponent, 7 mantissa bits: the upper half of an fp32
//   e4m3   "fn": bias 7, largest value 448, no infinity, 0x7F and 0xFF are NaN, subnormals down to 2^-9
//   e2m1   bias 1: 0 .5 1 1.5 2 3 4 6 and their negatives, in four bits
//   e8m0   a power of two, 2^(code-127); 255 is NaN. Must be reinterpreted, never cast from a number.
//
// Rounding is to nearest, ties to even. Spec: DeepSeek-V4 notes, sections 2.0 and 4.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define FATHOM_HOST_DEVICE __host__ __device__
#else
#define FATHOM_HOST_DEVICE
#endif

namespace fathom {

/// Storage types: distinct, so that a view of codes cannot be taken for a view of bytes. No arithmetic.
struct bf16 {
  uint16_t bits;
  friend bool operator==(bf16, bf16) = default;
};
struct e4m3 {
  uint8_t bits;
  friend bool operator==(e4m3, e4m3) = default;
};
struct e8m0 {
  uint8_t bits;
  friend bool operator==(e8m0, e8m0) = default;
};
/// Two e2m1 codes in a byte; the low nibble is the even column.
struct e2m1x2 {
  uint8_t bits;
  friend bool operator==(e2m1x2, e2m1x2) = default;
};

FATHOM_HOST_DEVICE inline float to_float(bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

/// fp32 -> bf16. NaN stays NaN.
FATHOM_HOST_DEVICE inline bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(u >> 16 | 0x40)};
  return {static_cast<uint16_t>((u + (((u >> 16) & 1) + 0x7FFF)) >> 16)};
}

/// fp32 rounded to the bf16 grid, kept as fp32: the `bf()` of the specification.
FATHOM_HOST_DEVICE inline float round_bf16(float v) {
  return to_float(to_bf16(v));
}

FATHOM_HOST_DEVICE inline float to_float(e8m0 v) {
  if (v.bits == 255) return std::bit_cast<float>(0x7FC00000u);
  if (v.bits == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is an fp32 subnormal
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 23);
}

FATHOM_HOST_DEVICE inline float to_float(e4m3 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x80) << 24, magnitude = v.bits & 0x7F;
  if (magnitude == 0x7F) return std::bit_cast<float>(0x7FC00000u | sign);
  if (magnitude < 8) {  // subnormal: magnitude * 2^-9
    const float value = static_cast<float>(magnitude) * 0.001953125f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

/// fp32 -> e4m3 with saturation at 448 (the quantiser clamps first, so saturation never changes its result).
/// NaN becomes 0x7F.
FATHOM_HOST_DEVICE inline e4m3 to_e4m3(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  const uint8_t sign = static_cast<uint8_t>(u >> 24 & 0x80);
  u &= 0x7FFFFFFF;
  if (u > 0x7F800000) return {static_cast<uint8_t>(sign | 0x7F)};
  if (u >= 0x43E00000) return {static_cast<uint8_t>(sign | 0x7E)};  // |v| >= 448
  if (u < 0x3C800000) {                                             // |v| < 2^-6: multiples of 2^-9
    const float magic = 16384.0f;                                   // adding 2^14 makes the last mantissa bit 2^-9
    const uint32_t steps = std::bit_cast<uint32_t>(std::bit_cast<float>(u) + magic) - std::bit_cast<uint32_t>(magic);
    return {static_cast<uint8_t>(sign | steps)};
  }
  u += ((u >> 20) & 1) + 0x7FFFF;
  return {static_cast<uint8_t>(sign | ((u >> 20) - (120u << 3)))};
}

/// Value of an e2m1 code (low four bits).
FATHOM_HOST_DEVICE inline float e2m1_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8) << 28, exponent = code >> 1 & 3, mantissa = code & 1;
  if (exponent == 0) return std::bit_cast<float>(sign | (mantissa ? 0x3F000000u : 0u));
  return std::bit_cast<float>(sign | (exponent + 126) << 23 | mantissa << 22);
}

/// fp32 -> e2m1 code, saturating at 6. Ties go to the even code: .25->0, .75->1, 1.25->1, 1.75->2, 2.5->2, 3.5->4,
/// 5->4.
FATHOM_HOST_DEVICE inline uint8_t to_e2m1(float v) {
  const uint8_t sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(v) >> 28 & 8);
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0x7FFFFFFF);
  uint8_t code = 7;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  return static_cast<uint8_t>(sign | code);
}

/// The code of 2^ceil(log2 t) for a positive normal fp32 t, taken from its bits: the scale rule of every quantiser.
FATHOM_HOST_DEVICE inline e8m0 ceil_e8m0(float t) {
  const uint32_t u = std::bit_cast<uint32_t>(t);
  return {static_cast<uint8_t>((u >> 23 & 255) + ((u & 0x7FFFFF) != 0))};
}

/// 2^-(code-127) for a code in 1..253: dividing by a scale is multiplying by this, exactly.
FATHOM_HOST_DEVICE inline float reciprocal(e8m0 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(254 - v.bits) << 23);
}

/// Scale of a group whose largest magnitude is `amax`, for e4m3 codes: 2^ceil(log2(max(amax, 1e-4) / 448)).
FATHOM_HOST_DEVICE inline e8m0 e4m3_scale(float amax) {
  return ceil_e8m0((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
}

/// The same for e2m1 codes: 2^ceil(log2(max(amax, 6 * 2^-126) / 6)).
FATHOM_HOST_DEVICE inline e8m0 e2m1_scale(float amax) {
  const float floor = 6.0f * std::bit_cast<float>(1u << 23);
  return ceil_e8m0((amax > floor ? amax : floor) * (1.0f / 6.0f));
}

}  // namespace fathom
