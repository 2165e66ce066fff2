// MXFP4 products whose sums are scaled, not their weights: 32 columns that share a scale are summed by two tensor core
// products of bare codes, and fp32 multiplies the sum of each row with its scale.
//
// A code costs 3.3 / 2 instructions less than with its scale. The code seem at the bf16 field s000000eem000000 is its
// value times 2^-126, most of them below bf16's smallest normal number, which tensor cores take as they are.
// Activations carry 2^64, so products stay normal numbers for activation scales from 2^-54 to 2^54; larger ones are
// taken for 2^54. Scales of weights below 2^-126 are taken for 0.
//
// A thread has eight codes of row g and eight of row g + 8 of a group, those of columns 8 t ...; activations lie in the
// order of columns, each eight as pairs (0,4) (1,5) (2,6) (3,7).
#pragma once

#include "ops/experts/moe_weights.cuh"

namespace fathom::ops::moe {

inline constexpr float kGroupLift = 18446744073709551616.0f;    // 2^64, of activations
inline constexpr float kGroupRestore = 4611686018427387904.0f;  // 2^62: sums carry 2^(64 - 126)

/// The factor of activations with this scale.
FATHOM_DEVICE float lifted(float scale) {
  constexpr float kMost = 18014398509481984.0f;  // 2^54
  return (scale < kMost ? scale : kMost) * kGroupLift;
}

/// Scale `group` of the four in a word.
FATHOM_DEVICE float group_scale(uint32_t word, int group) {
  return std::bit_cast<float>((group == 3 ? word >> 1 : word << (23 - 8 * group)) & 0x7F800000u);
}

/// total += scale * (codes of a group times its activations): rows g (low) and g + 8 (high), columns 2t and 2t + 1.
FATHOM_DEVICE void multiply_group(float (&total)[4], uint32_t low, uint32_t high, float low_scale, float high_scale,
                                  const Float4& x) {
  uint32_t a[4], b[4];
  spread_fp4(low, a), spread_fp4(high, b);
  const uint32_t first[4] = {a[0], b[0], a[1], b[1]}, second[4] = {a[2], b[2], a[3], b[3]};
  float sum[4];
  device::mma_bf16_first(sum, first, word(x.x), word(x.y));
  device::mma_bf16(sum, second, word(x.z), word(x.w));
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) total[i] += sum[i] * (i < 2 ? low_scale : high_scale);
}

}  // namespace fathom::ops::moe
