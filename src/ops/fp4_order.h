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

}  // namespace fathom::ops
