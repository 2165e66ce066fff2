// Probabilities of tokens as whole numbers in proportion: sums are the same in any order and on any machine.
#pragma once

#include <cstdint>

#include "base/small_floats.h"  // FATHOM_HOST_DEVICE

namespace fathom::ops {

/// 2^40 for the best token. A weight below 1 is none: a probability of 2^-40 of the best one's.
inline constexpr int kWeightBits = 40;
inline constexpr uint64_t kWeightOfBest = uint64_t{1} << kWeightBits;

/// Products and sums as the compiler of the processor makes them: none is fused (-ffp-contract=off).
struct HostArithmetic {
  static float multiply(float a, float b) { return a * b; }
  static float add(float a, float b) { return a + b; }
};

/// 2^(40 + x) for x <= 0, cut to a whole number; relative error 2e-7. Products and sums alone, each rounded, so that
/// every machine gets the same. `Arithmetic` provides them.
template <typename Arithmetic>
FATHOM_HOST_DEVICE uint64_t weight_of(float x) {
  if (!(x > -static_cast<float>(kWeightBits))) return 0;
  int whole = static_cast<int>(x);  // towards zero
  whole -= static_cast<float>(whole) > x;
  const float f = Arithmetic::add(x, -static_cast<float>(whole));
  const auto next = [&](float p, float c) { return Arithmetic::add(Arithmetic::multiply(p, f), c); };
  float p = 1.5252734e-5f;  // the series of 2^f
  p = next(p, 1.5403530e-4f);
  p = next(p, 1.3333558e-3f);
  p = next(p, 9.6181291e-3f);
  p = next(p, 5.5504109e-2f);
  p = next(p, 0.24022651f);
  p = next(p, 0.69314718f);
  p = next(p, 1.0f);
  const auto mantissa = static_cast<uint64_t>(Arithmetic::multiply(p, 0x1p24f));
  const int shift = kWeightBits - 24 + whole;
  return shift >= 0 ? mantissa << shift : mantissa >> -shift;
}

/// Of a logit beside the best one of its row.
template <typename Arithmetic>
FATHOM_HOST_DEVICE uint64_t weight_beside(float logit, float best, float scale) {
  return weight_of<Arithmetic>(Arithmetic::multiply(Arithmetic::add(logit, -best), scale));
}

/// Where a random number of 53 bits falls among weights that sum up to `total`. total < 2^58.
FATHOM_HOST_DEVICE inline uint64_t place_of(uint64_t random, uint64_t total) {
  // random * total / 2^53 in two parts: there is no 128-bit product on a GPU.
  const uint64_t low = (random & 0xFFFFFFFFu) * (total & 0xFFFFFFFFu);
  const uint64_t cross_a = (random >> 32) * (total & 0xFFFFFFFFu), cross_b = (random & 0xFFFFFFFFu) * (total >> 32);
  const uint64_t middle = (low >> 32) + (cross_a & 0xFFFFFFFFu) + (cross_b & 0xFFFFFFFFu);
  const uint64_t high = (random >> 32) * (total >> 32) + (cross_a >> 32) + (cross_b >> 32) + (middle >> 32);
  return high << 11 | (middle & 0xFFFFFFFFu) >> 21;
}

}  // namespace fathom::ops
