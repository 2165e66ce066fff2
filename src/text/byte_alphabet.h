// The alphabet of byte-level BPE: each byte as one printable character.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fathom::text {

/// Code points by byte. Bytes that print stand for themselves, the others are U+0100 and up in order.
constexpr std::array<uint32_t, 256> byte_alphabet() {
  std::array<uint32_t, 256> out{};
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    out[b] = printable ? b : next++;
  }
  return out;
}

}  // namespace fathom::text
