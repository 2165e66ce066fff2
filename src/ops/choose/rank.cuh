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

/// Atomic, in any memory.
#ifdef FATHOM_GPU_EMULATOR
inline void raise(uint64_t* p, uint64_t v) {
  *p = v > *p ? v : *p;
}
inline void add_to(uint64_t* p, uint64_t v) {
  *p += v;
}
#else
FATHOM_DEVICE void raise(uint64_t* p, uint64_t v) {
  atomicMax(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
FATHOM_DEVICE void add_to(uint64_t* p, uint64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
#endif

}  // namespace fathom::ops::choose
