// Random inputs of the operation benchmarks, and how their results are reported.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/op.h"

namespace fathom::bench {

/// Dimensions of a model that the operations see.
struct Dims {
  const char* name;
  int64_t d, heads, q_rank, groups, o_rank, experts, topk, inter, index_heads, index_topk, vocab;
};

inline constexpr Dims kFairy{"fairy", 256, 4, 128, 2, 128, 16, 4, 128, 4, 64, 2048};
inline constexpr Dims kFlash{"flash", 4096, 64, 1024, 8, 1024, 256, 6, 2048, 64, 512, 129280};

class Inputs {
 public:
  std::vector<float> fp32(int64_t n, float scale = 1) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = scale * normal();
    return v;
  }
  std::vector<bf16> bf16s(int64_t n, float scale = 1) {
    std::vector<bf16> v(static_cast<size_t>(n));
    for (bf16& x : v) x = to_bf16(scale * normal());
    return v;
  }
  std::vector<e4m3> codes(int64_t n) {
    std::vector<e4m3> v(static_cast<size_t>(n));
    for (e4m3& x : v) x = to_e4m3(100 * normal());
    return v;
  }
  std::vector<uint8_t> bytes(int64_t n, int low = 0, int high = 255) {
    std::vector<uint8_t> v(static_cast<size_t>(n));
    for (uint8_t& x : v)
      x = static_cast<uint8_t>(low + static_cast<int>(engine_() % static_cast<uint32_t>(high - low + 1)));
    return v;
  }
  std::vector<e8m0> scales(int64_t n) {
    std::vector<e8m0> v;
    for (uint8_t x : bytes(n, 112, 118)) v.push_back({x});
    return v;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }

 private:
  /// Near enough to a normal distribution, and quick.
  float normal() {
    float sum = -2;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(engine_() >> 8) * 0x1p-24f;
    return 1.7f * sum;
  }
  std::minstd_rand engine_{1};
};

/// The rope frequencies of base 10000.
inline std::vector<float> rope_frequencies() {
  std::vector<float> f(32);
  for (int i = 0; i < 32; ++i) f[static_cast<size_t>(i)] = static_cast<float>(std::pow(10000.0, -i / 32.0));
  return f;
}

/// Times the "cpu" variant. `macs` and `bytes` are what one call multiplies and what it must at least read and write.
template <typename Args>
void measure(benchmark::State& state, ops::Variants<Args> variants, const Args& args, double macs, double bytes) {
  const auto* v = ops::find_variant(variants, "cpu");
  if (!v) throw std::logic_error("the operation has no cpu variant");
  ops::Launch launch;
  const size_t need = v->workspace ? v->workspace(args, launch.device) : 0;
  std::unique_ptr<std::byte[]> memory(new std::byte[need + 256]);
  launch.workspace = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.get()) + 255) / 256 * 256);
  for (auto _ : state) {
    v->run(args, launch);
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  if (macs > 0) state.counters["FLOP/s"] = Counter(2 * macs, Counter::kIsIterationInvariantRate, Counter::kIs1000);
  state.counters["B/s"] = Counter(bytes, Counter::kIsIterationInvariantRate, Counter::kIs1000);
}

}  // namespace fathom::bench
