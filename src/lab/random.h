// Random numbers for the kernel lab: one generator, seeded, the same stream on every machine, and fast fills, because a
// case at the sizes of the real model holds gigabytes of weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/small_floats.h"

namespace fathom::lab {

/// xoshiro256++, seeded through splitmix64.
class Rng {
 public:
  explicit Rng(uint64_t seed);

  uint64_t next();
  /// Uniform in [0, n); n >= 1.
  int64_t below(int64_t n) {
    return static_cast<int64_t>(static_cast<__uint128_t>(next()) * static_cast<uint64_t>(n) >> 64);
  }
  /// Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  /// Uniform in [low, high).
  float uniform(float low, float high);
  bool chance(double p) { return uniform(0, 1) < p; }
  float normal();
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(below(static_cast<int64_t>(from.size())))];
  }
  template <typename T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[below(static_cast<int64_t>(from.size()))];
  }

 private:
  uint64_t state_[4];
};

/// Normal values of standard deviation `sigma`, drawn from a table of 65,536 quantiles.
void fill_normal(std::span<bf16> out, float sigma, Rng& rng);
void fill_normal(std::span<float> out, float sigma, Rng& rng);
/// Weights of a norm: around 1, as trained ones are.
void fill_norm_weight(std::span<bf16> out, Rng& rng);
/// Any finite e4m3 code.
void fill_codes(std::span<e4m3> out, Rng& rng);
/// Any pair of e2m1 codes (all of them are finite).
void fill_codes(std::span<e2m1x2> out, Rng& rng);
/// Powers of two from 2^low to 2^high.
void fill_scales(std::span<e8m0> out, int low, int high, Rng& rng);
void fill_bytes(std::span<std::byte> out, Rng& rng);

/// `count` distinct numbers out of [0, n), in random order.
std::vector<int32_t> sample(int64_t n, int64_t count, Rng& rng);

}  // namespace fathom::lab
