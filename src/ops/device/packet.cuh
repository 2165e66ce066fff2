// Packets that blocks hand to each other during a launch, and what who polls them needs.
#pragma once

#include "ops/device/gpu.cuh"

namespace fathom::ops::device {

/// 16 bytes that are written and read as a whole, in no order with other memory.
struct alignas(16) Packet {
  uint32_t word[4];
};

#ifdef FATHOM_GPU_EMULATOR
inline Packet load_packet(const Packet* p) {
  return *p;
}
inline void store_packet(Packet* p, const Packet& v) {
  *p = v;
}
/// The bits that all lanes have set.
inline uint32_t common_bits_of_warp(uint32_t v) {
  const uint64_t word = v;
  const auto& all = emulator::exchange(&word, 1);
  for (const auto& w : all) v &= static_cast<uint32_t>(w[0]);
  return v;
}
#else
FATHOM_DEVICE Packet load_packet(const Packet* p) {
  uint64_t low, high;
  asm volatile("{ .reg .b128 v;\n ld.relaxed.gpu.global.b128 v, [%2];\n mov.b128 {%0, %1}, v; }"
               : "=l"(low), "=l"(high)
               : "l"(p)
               : "memory");
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
           static_cast<uint32_t>(high >> 32)}};
}
FATHOM_DEVICE void store_packet(Packet* p, const Packet& v) {
  asm volatile("{ .reg .b128 v;\n mov.b128 v, {%1, %2};\n st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(p),
               "l"(v.word[0] | static_cast<uint64_t>(v.word[1]) << 32),
               "l"(v.word[2] | static_cast<uint64_t>(v.word[3]) << 32)
               : "memory");
}
/// The bits that all lanes have set.
FATHOM_DEVICE uint32_t common_bits_of_warp(uint32_t v) {
  return __reduce_and_sync(0xFFFFFFFFu, v);
}
#endif

}  // namespace fathom::ops::device
