// Logits in an order that one comparison decides: higher ones first, the lower id among equals.
#pragma once

#include <bit>

#include "ops/device/rows.cuh"
#include "ops/device/scalars.cuh"

namespace fathom::ops::choose {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;

/// Rises with the logit; of equal ones the lower id is the larger. kBad, which beats all: a logit was not finite.
inline constexpr uint64_t kBad = ~0ull;
FATHOM_DEVICE uint64_t rank_of(float v, int id) {
  if (v - v != 0.0f) return kBad;
  const auto bits = std::bit_cast<uint32_t>(v + 0.0f);  // one zero
  const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{rising} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
FATHOM_DEVICE float logit_of(uint64_t rank) {
  const auto rising = static_cast<uint32_t>(rank >> 32);
  return std::bit_cast<float>(rising >> 31 ? rising & 0x7FFFFFFFu : ~rising);
}
FATHOM_DEVICE int32_t id_of(uint64_t rank) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(rank));
}

FATHOM_DEVICE uint64_t largest_of_warp(uint64_t rank) {
  const auto high = static_cast<uint32_t>(rank >> 32), best = device::largest_of_warp(high);
  return uint64_t{best} << 32 | device::largest_of_warp(high == best ? static_cast<uint32_t>(rank) : 0u);
}
FATHOM_DEVICE uint64_t sum_of_warp(uint64_t v) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) v += device::shuffle_from(v, device::thread_index() % 32 ^ mask);
  return v;
}

}  // namespace fathom::ops::choose
