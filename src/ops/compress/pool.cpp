#include "ops/compress/pool.h"

#include <cstddef>

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/compress/pool.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

void pool(const cpu::PoolSample* samples, int64_t count, int64_t width, float* out) {
  const DF d;
  for (int64_t c = 0; c < width; c += kLanes) {
    const auto score = [&](const cpu::PoolSample& s) HWY_ATTR {
      const auto g = hn::LoadU(d, s.g + c);
      return s.ape ? hn::Add(g, hn::LoadU(d, s.ape + c)) : g;
    };
    auto top = score(samples[0]);
    for (int64_t i = 1; i < count; ++i) top = hn::Max(top, score(samples[i]));
    auto sum = hn::Zero(d), total = sum;
    for (int64_t i = 0; i < count; ++i) {
      const auto e = hn::Exp(d, hn::Sub(score(samples[i]), top));
      sum = hn::Add(sum, e);
      total = hn::MulAdd(e, hn::LoadU(d, samples[i].k + c), total);
    }
    hn::StoreU(round_to_bf16(d, hn::Div(total, sum)), d, out + c);
  }
}

#else  // HWY_SCALAR: nothing here is called

void pool(const cpu::PoolSample*, int64_t, int64_t, float*) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(pool);

void cpu::pool(const PoolSample* samples, int64_t count, int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(pool)(samples, count, width, out);
}

}  // namespace fathom::ops
#endif
