// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// A number is a function of (seed, counter) alone, so a request draws the same tokens alone, in any batch and after any
// restart: there is no state to carry.
#pragma once

#include <array>
#include <cstdint>

namespace fathom {

inline std::array<uint32_t, 4> philox(uint64_t seed, uint64_t counter_low, uint64_t counter_high) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9, key1 += 0xBB67AE85;
  }
  return c;
}

/// 53 random bits. `stream` tells apart draws made at the same position.
inline uint64_t uniform_bits(uint64_t seed, uint64_t position, uint64_t stream = 0) {
  const auto r = philox(seed, position, stream);
  return (uint64_t{r[0]} << 32 | r[1]) >> 11;
}

}  // namespace fathom
