// The order of bits in which GPUs keep FP4 codes: 4 bytes hold the eight codes they hold in a checkpoint, with their
// bits where a mask, or a shift and a mask, finds two of them as bf16 fields.
//
// A code seem as the bf16 field s000000eem000000 is its value times 2^-126. Half h of a word holds codes 4h + 0 ... 3:
//   code 0  bits 9, 2..0     6 below their field
//   code 1  bits 13, 6..4    2 below
//   code 2  bits 12..10, the sign in bit 3 of the other half: 4 above, in a word that is rotated
//   code 3  bits 15, 8, 7    where their field is, and bit 14 for the lowest, 8 above
#pragma once

#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops {

/// Eight codes of a checkpoint (code i in bits 4i ...) in this order.
FATHOM_HOST_DEVICE constexpr uint32_t order_fp4(uint32_t codes) {
  uint32_t to = 0;
  for (int half = 0; half < 2; ++half) {
    const int at = 16 * half, other = 16 - at;
    const auto rest = [&](int i) { return codes >> (at + 4 * i) & 7; };
    const auto sign = [&](int i) { return codes >> (at + 4 * i + 3) & 1; };
    to |= (rest(0) | sign(0) << 9 | rest(1) << 4 | sign(1) << 13 | rest(2) << 10) << at | sign(2) << (other + 3);
    to |= ((rest(3) >> 1) << 7 | (rest(3) & 1) << 14 | sign(3) << 15) << at;
  }
  return to;
}

/// Codes i (low half) and 4 + i (high half) of a word in this order as bf16 fields.
FATHOM_HOST_DEVICE constexpr uint32_t fp4_fields(uint32_t word, int i) {
  constexpr uint32_t kField = 0x81C081C0u;
  if (i == 0) return word << 6 & kField;
  if (i == 1) return word << 2 & kField;
  if (i == 2) return (word >> 4 | word << 28) & kField;
  return (word & 0x81808180u) | (word >> 8 & 0x00400040u);
}

// The order of bytes serves products of fp8 (moe_teams.cuh). A code seem as the byte s000eem0 is its value times 2^-14
// in e5m2, the upper half of an fp16. Byte i of a word holds code i in bits 7, 3..1, where its field is, and code 4 + i
// in bits 0, 6..4.

/// Eight codes of a checkpoint in the order of bytes.
FATHOM_HOST_DEVICE constexpr uint32_t order_fp4_bytes(uint32_t codes) {
  uint32_t to = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t first = codes >> 4 * i & 15, second = codes >> (16 + 4 * i) & 15;
    to |= ((first & 7) << 1 | (first >> 3) << 7 | (second & 7) << 4 | second >> 3) << 8 * i;
  }
  return to;
}

/// Codes 0 ... 3 (half 0) or 4 ... 7 of a word in the order of bytes as e5m2.
FATHOM_HOST_DEVICE constexpr uint32_t fp4_bytes(uint32_t word, int half) {
  if (half == 0) return word & 0x8E8E8E8Eu;
  return (word >> 3 & 0x0E0E0E0Eu) | (word << 7 & 0x80808080u);
}

}  // namespace fathom::ops
