#include "ops/residual_mix/streams.h"

#include <cstddef>

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/residual_mix/streams.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// The sum over the streams is exact in double (24 by 8 bits each), so that X' is rounded as in the reference: one
/// differing bf16 value of a stream shows in everything behind it.
void post_streams(bf16* const* x, const bf16* y, const float* post, const float* comb, int64_t d) {
  const DF df;
  const hn::Half<DF> dh;
  const hn::Repartition<double, DF> dd;
  for (int64_t i = 0; i < d; i += kLanes) {
    const auto yv = load_bf16(df, y + i);
    hn::Vec<decltype(dd)> low[4], high[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto v = load_bf16(df, x[j] + i);
      low[j] = hn::PromoteTo(dd, hn::LowerHalf(dh, v));
      high[j] = hn::PromoteTo(dd, hn::UpperHalf(dh, v));
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const auto c0 = hn::Set(dd, double{comb[k]});
      auto a = hn::Mul(c0, low[0]), b = hn::Mul(c0, high[0]);
#pragma GCC unroll 4
      for (int j = 1; j < 4; ++j) {
        const auto c = hn::Set(dd, double{comb[4 * j + k]});
        a = hn::MulAdd(c, low[j], a);
        b = hn::MulAdd(c, high[j], b);
      }
      const auto sum = hn::Combine(df, hn::DemoteTo(dh, b), hn::DemoteTo(dh, a));
      store_bf16(df, hn::Add(hn::Mul(hn::Set(df, post[k]), yv), sum), x[k] + i);
    }
  }
}

void mix_streams(const float* f, const float* pre, int64_t d, float* out) {
  const DF df;
  const auto p0 = hn::Set(df, pre[0]), p1 = hn::Set(df, pre[1]), p2 = hn::Set(df, pre[2]), p3 = hn::Set(df, pre[3]);
  for (int64_t i = 0; i < d; i += kLanes) {
    auto sum = hn::Mul(p0, hn::LoadU(df, f + i));
    sum = hn::Add(sum, hn::Mul(p1, hn::LoadU(df, f + d + i)));
    sum = hn::Add(sum, hn::Mul(p2, hn::LoadU(df, f + 2 * d + i)));
    sum = hn::Add(sum, hn::Mul(p3, hn::LoadU(df, f + 3 * d + i)));
    hn::StoreU(round_to_bf16(df, sum), df, out + i);
  }
}

void sigmoid_gates(const float* m, float scale, const float* base, float factor, float eps, int64_t n, float* out) {
  const D4 d;
  const auto one = hn::Set(d, 1.0f);
  alignas(16) float part[4];
  for (int64_t i = 0; i < n; i += 4) {
    for (int64_t k = 0; k < 4; ++k) part[k] = i + k < n ? m[i + k] * scale + base[i + k] : 0.0f;
    const auto v = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(hn::Load(d, part)))));
    hn::Store(hn::Add(hn::Mul(v, hn::Set(d, factor)), hn::Set(d, eps)), d, part);
    for (int64_t k = 0; k < 4 && i + k < n; ++k) out[i + k] = part[k];
  }
}

/// Divides four vectors by their sum + eps: one lane is one token.
HWY_INLINE void normalise(VF& a, VF& b, VF& c, VF& e, VF eps) {
  const DF d;
  const auto inverse = hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Add(hn::Add(hn::Add(a, b), c), e), eps));
  a = hn::Mul(a, inverse);
  b = hn::Mul(b, inverse);
  c = hn::Mul(c, inverse);
  e = hn::Mul(e, inverse);
}

void sinkhorn_lanes(const cpu::SinkhornArgs& a, int64_t first, int64_t count) {
  const DF d;
  alignas(64) float lanes[16][kLanes] = {};
  for (int64_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < 16; ++i) lanes[i][t] = a.mixes[(first + t) * a.mixes_pitch + i] * a.scale + a.base[i];
  VF c[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) c[i] = hn::Load(d, lanes[i]);
  const auto eps = hn::Set(d, a.eps);
#pragma GCC unroll 4
  for (int j = 0; j < 16; j += 4) {
    const auto top = hn::Max(hn::Max(c[j], c[j + 1]), hn::Max(c[j + 2], c[j + 3]));
#pragma GCC unroll 4
    for (int k = j; k < j + 4; ++k) c[k] = hn::Exp(d, hn::Sub(c[k], top));
    const auto sum = hn::Add(hn::Add(c[j], c[j + 1]), hn::Add(c[j + 2], c[j + 3]));
#pragma GCC unroll 4
    for (int k = j; k < j + 4; ++k) c[k] = hn::Add(hn::Div(c[k], sum), eps);
  }
  for (int32_t i = 0; i < a.iterations; ++i) {
    if (i > 0) {
#pragma GCC unroll 4
      for (int j = 0; j < 16; j += 4) normalise(c[j], c[j + 1], c[j + 2], c[j + 3], eps);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) normalise(c[k], c[4 + k], c[8 + k], c[12 + k], eps);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) hn::Store(c[i], d, lanes[i]);
  for (int64_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < 16; ++i) a.comb[(first + t) * a.comb_pitch + i] = lanes[i][t];
}

void sinkhorn(const cpu::SinkhornArgs& a) {
  for (int64_t t = 0; t < a.tokens; t += kLanes) sinkhorn_lanes(a, t, HWY_MIN(kLanes, a.tokens - t));
}

#else  // HWY_SCALAR: nothing here is called

void post_streams(bf16* const*, const bf16*, const float*, const float*, int64_t) {}
void mix_streams(const float*, const float*, int64_t, float*) {}
void sigmoid_gates(const float*, float, const float*, float, float, int64_t, float*) {}
void sinkhorn(const cpu::SinkhornArgs&) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(post_streams);
HWY_EXPORT(mix_streams);
HWY_EXPORT(sigmoid_gates);
HWY_EXPORT(sinkhorn);

namespace cpu {

void post_streams(bf16* const* x, const bf16* y, const float* post, const float* comb, int64_t d) {
  HWY_DYNAMIC_DISPATCH(post_streams)(x, y, post, comb, d);
}

void mix_streams(const float* f, const float* pre, int64_t d, float* out) {
  HWY_DYNAMIC_DISPATCH(mix_streams)(f, pre, d, out);
}

void sigmoid_gates(const float* m, float scale, const float* base, float factor, float eps, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(sigmoid_gates)(m, scale, base, factor, eps, n, out);
}

void sinkhorn(const SinkhornArgs& a) {
  HWY_DYNAMIC_DISPATCH(sinkhorn)(a);
}

}  // namespace cpu
}  // namespace fathom::ops
#endif
