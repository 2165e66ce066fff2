// FNV-1a, a hash for naming and seeding: not for anything that somebody may want to collide.
#pragma once

#include <cstdint>
#include <string_view>

namespace fathom {

constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace fathom
