// The FMA loop is compiled for every instruction set that Highway knows and chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/cpu_rates.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fathom::lab::HWY_NAMESPACE {

/// 12 independent chains of multiply-adds; returns the operations done.
double fma_chains(int rounds, float* sink) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  auto a0 = hn::Set(d, 1.0f), a1 = hn::Set(d, 1.1f), a2 = hn::Set(d, 1.2f), a3 = hn::Set(d, 1.3f),
       a4 = hn::Set(d, 1.4f);
  auto a5 = hn::Set(d, 1.5f), a6 = hn::Set(d, 1.6f), a7 = hn::Set(d, 1.7f), a8 = hn::Set(d, 1.8f),
       a9 = hn::Set(d, 1.9f);
  auto a10 = hn::Set(d, 2.0f), a11 = hn::Set(d, 2.1f);
  const auto m = hn::Set(d, 0.75f), c = hn::Set(d, 0.37f);
  for (int r = 0; r < rounds; ++r) {
    a0 = hn::MulAdd(a0, m, c), a1 = hn::MulAdd(a1, m, c), a2 = hn::MulAdd(a2, m, c), a3 = hn::MulAdd(a3, m, c);
    a4 = hn::MulAdd(a4, m, c), a5 = hn::MulAdd(a5, m, c), a6 = hn::MulAdd(a6, m, c), a7 = hn::MulAdd(a7, m, c);
    a8 = hn::MulAdd(a8, m, c), a9 = hn::MulAdd(a9, m, c), a10 = hn::MulAdd(a10, m, c), a11 = hn::MulAdd(a11, m, c);
  }
  auto sum = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  sum = hn::Add(sum, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11)));
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace fathom::lab::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/threads.h"
#include "lab/cpu_rates.h"

namespace fathom::lab {

HWY_EXPORT(fma_chains);
HWY_EXPORT(target_name);

namespace {

template <typename Work>
double best_seconds(int repeats, Work work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

const char* cpu_instruction_set() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

CpuRates measure_cpu_rates() {
  CpuRates rates;
  const int threads = thread_count();
  {
    constexpr int64_t bytes = int64_t{512} << 20;
    std::vector<char> from(bytes, 1), to(bytes, 2);
    const double time = best_seconds(4, [&] {
      parallel_for(bytes, bytes / (8 * threads) + 1, [&](int64_t begin, int64_t end) {
        std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
      });
    });
    rates.copy = 2.0 * bytes / time;
  }
  std::vector<float> sinks(static_cast<size_t>(threads));
  std::vector<double> flops(sinks.size());
  const double time = best_seconds(3, [&] {
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        flops[static_cast<size_t>(i)] = HWY_DYNAMIC_DISPATCH(fma_chains)(4'000'000, &sinks[static_cast<size_t>(i)]);
    });
  });
  for (double f : flops) rates.fp32 += f / time;
  return rates;
}

}  // namespace fathom::lab

#endif
