// The words of a fill, the same on host and device.
#pragma once

#include "ops/fill/fill.h"

namespace fathom::ops::fill_words {

/// Word number `counter` of a seed: the mixing of SplitMix64 (Steele, Lea, Flood 2014).
FATHOM_HOST_DEVICE inline uint64_t random_word(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

/// One rounding, on host and device alike.
FATHOM_HOST_DEVICE inline float even_value(const FillArgs& a, int32_t numerator, float denominator) {
  return fmaf(static_cast<float>(numerator) * denominator, a.spread, a.center);
}

FATHOM_HOST_DEVICE inline uint32_t id_at(const FillArgs& a, uint64_t element) {
  const auto chosen = static_cast<uint64_t>(a.chosen), ids = static_cast<uint64_t>(a.ids);
  const uint64_t random = random_word(a.seed, element / chosen);
  // Multiples of a step below ids / chosen are different modulo ids.
  const uint64_t step = 1 + (random & 0xFFFFFFFF) % (ids / chosen);
  return static_cast<uint32_t>(((random >> 32) + element % chosen * step) % ids);
}

/// Word i of what is filled.
FATHOM_HOST_DEVICE inline uint64_t word_at(const FillArgs& a, int64_t i) {
  const auto number = static_cast<uint64_t>(a.first + (a.row > 0 ? i / a.row * a.pitch + i % a.row : i));
  const uint64_t random = random_word(a.seed, number);
  uint64_t word = random;
  switch (a.kind) {
    case FillKind::bytes:
      break;
    case FillKind::e4m3:
      word = (random & 0x9F9F9F9F9F9F9F9Full) | 0x2020202020202020ull;
      break;
    case FillKind::constant:
      word = a.byte * 0x0101010101010101ull;
      break;
    case FillKind::bf16:
      word = 0;
      for (int i = 0; i < 4; ++i) {
        const auto numerator = static_cast<int16_t>(random >> 16 * i);
        word |= uint64_t{to_bf16(even_value(a, numerator, 0x1.0p-15f)).bits} << 16 * i;
      }
      break;
    case FillKind::f32:
      word = 0;
      for (int i = 0; i < 2; ++i) {
        const int32_t numerator = static_cast<int32_t>(random >> 32 * i) >> 8;
        word |= uint64_t{std::bit_cast<uint32_t>(even_value(a, numerator, 0x1.0p-23f))} << 32 * i;
      }
      break;
    case FillKind::ids:
      word = id_at(a, 2 * number) | uint64_t{id_at(a, 2 * number + 1)} << 32;
      break;
  }
  return word;
}

}  // namespace fathom::ops::fill_words
