#include "lab/random.h"

#include <cmath>
#include <cstring>
#include <numeric>

namespace fathom::lab {

namespace {

uint64_t rotate(uint64_t v, int by) {
  return v << by | v >> (64 - by);
}

/// 65,536 values whose distribution is the standard normal one (made once from a fixed seed by Box-Muller).
const std::vector<float>& normal_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    Rng rng(0x6E6F726D616CULL);
    for (float& v : values) v = rng.normal();
    return values;
  }();
  return table;
}

}  // namespace

Rng::Rng(uint64_t seed) {
  for (uint64_t& s : state_) {
    seed += 0x9E3779B97F4A7C15ULL;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    s = z ^ (z >> 31);
  }
}

uint64_t Rng::next() {
  const uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0];
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = rotate(state_[3], 45);
  return result;
}

float Rng::uniform(float low, float high) {
  return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f);
}

float Rng::normal() {
  const double u = (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(next() >> 11) * 0x1p-53;
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
}

namespace {

/// out[i] = convert(a value of the normal table * sigma), four values for each random word.
/// Element i is `value` of the i-th 16 bits.
template <typename T, typename Value>
void fill_by_index(std::span<T> out, Rng& rng, Value value) {
  size_t i = 0;
  for (; i + 4 <= out.size(); i += 4) {
    const uint64_t word = rng.next();
    for (int k = 0; k < 4; ++k) out[i + k] = value(word >> (16 * k) & 0xFFFF);
  }
  for (; i < out.size(); ++i) out[i] = value(rng.next() & 0xFFFF);
}

template <typename T, typename Convert>
void fill_from_table(std::span<T> out, float sigma, Rng& rng, Convert convert) {
  const std::vector<float>& normal = normal_table();
  const auto converted = [&](size_t i) { return convert(normal[i] * sigma); };
  if (out.size() < normal.size()) return fill_by_index(out, rng, converted);
  std::vector<T> table(normal.size());
  for (size_t i = 0; i < table.size(); ++i) table[i] = converted(i);
  fill_by_index(out, rng, [&](size_t i) { return table[i]; });
}

}  // namespace

void fill_normal(std::span<bf16> out, float sigma, Rng& rng) {
  fill_from_table(out, sigma, rng, to_bf16);
}

void fill_normal(std::span<float> out, float sigma, Rng& rng) {
  fill_from_table(out, sigma, rng, [](float v) { return v; });
}

void fill_norm_weight(std::span<bf16> out, Rng& rng) {
  for (bf16& v : out) v = to_bf16(1.0f + 0.25f * rng.normal());
}

void fill_bytes(std::span<std::byte> out, Rng& rng) {
  size_t i = 0;
  for (; i + 8 <= out.size(); i += 8) {
    const uint64_t word = rng.next();
    std::memcpy(out.data() + i, &word, 8);
  }
  for (; i < out.size(); ++i) out[i] = static_cast<std::byte>(rng.next());
}

void fill_codes(std::span<e4m3> out, Rng& rng) {
  fill_bytes(std::as_writable_bytes(out), rng);
  for (e4m3& v : out)
    if ((v.bits & 0x7F) == 0x7F) v.bits ^= 1;  // NaN becomes the largest value
}

void fill_codes(std::span<e2m1x2> out, Rng& rng) {
  fill_bytes(std::as_writable_bytes(out), rng);
}

void fill_scales(std::span<e8m0> out, int low, int high, Rng& rng) {
  for (e8m0& v : out) v.bits = static_cast<uint8_t>(127 + rng.between(low, high));
}

std::vector<int32_t> sample(int64_t n, int64_t count, Rng& rng) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i)
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(rng.between(i, n - 1))]);
  all.resize(static_cast<size_t>(count));
  return all;
}

}  // namespace fathom::lab
