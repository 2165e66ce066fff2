#include "ops/cpu/scores.h"

#include <cstddef>

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/scores.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

void gate_scores(const float* g, int64_t n, float* out) {
  const DF d;
  const auto limit = hn::Set(d, 20.0f);
  alignas(64) float last[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto x = hn::LoadU(d, g + i);
    const auto soft = hn::Log1p(d, hn::Exp(d, hn::Min(limit, x)));
    const auto score = hn::Sqrt(hn::IfThenElse(hn::Gt(x, limit), x, soft));
    if (i + kLanes <= n) {
      hn::StoreU(score, d, out + i);
    } else {
      hn::Store(score, d, last);
      for (int64_t k = i; k < n; ++k) out[k] = last[k - i];
    }
  }
}

void index_scores(const float* dot, int64_t pitch, const bf16* weight, int64_t heads, int64_t n, uint16_t* key) {
  const DF d;
  const U32<DF> du;
  const hn::Repartition<double, DF> dd;
  const hn::Half<DF> dh;
  alignas(64) uint32_t keys[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    auto low = hn::Zero(dd), high = low;
    for (int64_t h = 0; h < heads; ++h) {
      const auto relu = hn::Max(hn::Zero(d), round_to_bf16(d, hn::LoadU(d, dot + h * pitch + i)));
      const auto term = round_to_bf16(d, hn::Mul(relu, hn::Set(d, to_float(weight[h]))));
      low = hn::Add(low, hn::PromoteTo(dd, hn::LowerHalf(dh, term)));
      high = hn::Add(high, hn::PromoteTo(dd, hn::UpperHalf(dh, term)));
    }
    auto sum = hn::Combine(d, hn::DemoteTo(dh, high), hn::DemoteTo(dh, low));
    sum = hn::Add(sum, hn::Zero(d));  // -0 becomes +0
    const auto bits = hn::ShiftRight<16>(bf16_carry(d, sum));
    const auto negative = hn::Ne(hn::And(bits, hn::Set(du, 0x8000u)), hn::Zero(du));
    const auto order =
        hn::IfThenElse(negative, hn::Xor(bits, hn::Set(du, 0xFFFFu)), hn::Or(bits, hn::Set(du, 0x8000u)));
    hn::Store(order, du, keys);
    for (int64_t k = 0; k < kLanes && i + k < n; ++k) key[i + k] = static_cast<uint16_t>(keys[k]);
  }
}

/// Bisection on the value of the key: 16 counts over all keys.
cpu::KeyLimit key_limit(const uint16_t* key, int64_t n, int64_t k) {
  const hn::CappedTag<uint16_t, 32> d;
  const auto at_least = [&](uint32_t value) HWY_ATTR {
    const auto limit = hn::Set(d, static_cast<uint16_t>(value));
    int64_t count = 0;
    int64_t i = 0;
    for (; i + static_cast<int64_t>(hn::Lanes(d)) <= n; i += static_cast<int64_t>(hn::Lanes(d))) {
      const auto v = hn::LoadU(d, key + i);
      count += static_cast<int64_t>(hn::CountTrue(d, hn::Eq(hn::Max(v, limit), v)));
    }
    for (; i < n; ++i) count += key[i] >= value;
    return count;
  };
  uint32_t value = 0;  // the largest one that at least k keys reach
  for (uint32_t bit = 0x8000; bit; bit >>= 1)
    if (at_least(value | bit) >= k) value |= bit;
  return {value, k - (value == 0xFFFF ? 0 : at_least(value + 1))};
}

#else  // HWY_SCALAR: nothing here is called

cpu::KeyLimit key_limit(const uint16_t*, int64_t, int64_t) {
  return {};
}

void gate_scores(const float*, int64_t, float*) {}
void index_scores(const float*, int64_t, const bf16*, int64_t, int64_t, uint16_t*) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(gate_scores);
HWY_EXPORT(index_scores);
HWY_EXPORT(key_limit);

namespace cpu {

void gate_scores(const float* g, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(gate_scores)(g, n, out);
}

void index_scores(const float* dot, int64_t pitch, const bf16* weight, int64_t heads, int64_t n, uint16_t* key) {
  HWY_DYNAMIC_DISPATCH(index_scores)(dot, pitch, weight, heads, n, key);
}

KeyLimit key_limit(const uint16_t* key, int64_t n, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(key_limit)(key, n, k);
}

}  // namespace cpu
}  // namespace fathom::ops
#endif
