#include "ops/sparse_attention/attend.h"

#include <cstddef>

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sparse_attention/attend.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// n packed bf16 values (whole pairs of vectors) in split order.
HWY_INLINE void split_row(const uint8_t* packed, int64_t n, float* out) {
  const DF d;
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    VF even, odd;
    split_bf16(d, hn::BitCast(U32<DF>(), hn::LoadU(U8<DF>(), packed + 2 * i)), even, odd);
    hn::Store(even, d, out + i);
    hn::Store(odd, d, out + i + kLanes);
  }
}

void decode_kv_row(RowFormat format, const std::byte* data, const std::byte* scales, float* out) {
  const DF d;
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  if (format == RowFormat::bf16) return split_row(bytes, kHeadDim, out);
  for (int64_t i = 0; i < kNopeDim; i += 4 * kLanes) {
    const e8m0 scale{static_cast<uint8_t>(scales[i / kKvGroup])};
    VF v[4];
    decode_e4m3(d, hn::LoadU(U8<DF>(), bytes + i), hn::Set(d, to_float(scale) * kE4m3Unit), v);
    for (int k = 0; k < 4; ++k) hn::Store(v[k], d, out + i + k * kLanes);
  }
  split_row(bytes + kNopeDim, kRopeDim, out + kNopeDim);
}

void load_query(const bf16* q, float* out) {
  split_row(reinterpret_cast<const uint8_t*>(q), kHeadDim, out);
}

/// Sums of all lanes of four vectors.
template <class D>
HWY_INLINE hn::Vec<D4> sum_lanes(D d, hn::Vec<D> v0, hn::Vec<D> v1, hn::Vec<D> v2, hn::Vec<D> v3) {
  const auto blocks = sum_blocks(d, v0, v1, v2, v3);
  if constexpr (hn::MaxLanes(d) == 4) {
    return blocks;
  } else {
    const hn::Half<D> dh;
    const auto half = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
    if constexpr (hn::MaxLanes(d) == 8) {
      return half;
    } else {
      const hn::Half<decltype(dh)> dq;
      return hn::Add(hn::LowerHalf(dq, half), hn::UpperHalf(dq, half));
    }
  }
}

template <int M>
HWY_NOINLINE void scores_tile(const float* HWY_RESTRICT q, const float* const* rows, const float* const* next,
                              float scale, float* s, int64_t pitch) {
  const DF d;
  VF acc[M][4];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = acc[m][2] = acc[m][3] = hn::Zero(d);
  const float *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3];
  for (int64_t i = 0; i < kHeadDim; i += kLanes) {
    for (int k = 0; k < 4; ++k) hwy::Prefetch(next[k] + i);
    const auto k0 = hn::Load(d, r0 + i), k1 = hn::Load(d, r1 + i), k2 = hn::Load(d, r2 + i), k3 = hn::Load(d, r3 + i);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto qv = hn::Load(d, q + m * kHeadDim + i);
      acc[m][0] = hn::MulAdd(qv, k0, acc[m][0]);
      acc[m][1] = hn::MulAdd(qv, k1, acc[m][1]);
      acc[m][2] = hn::MulAdd(qv, k2, acc[m][2]);
      acc[m][3] = hn::MulAdd(qv, k3, acc[m][3]);
    }
  }
  const D4 d4;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto sum = sum_lanes(d, acc[m][0], acc[m][1], acc[m][2], acc[m][3]);
    hn::StoreU(hn::Mul(sum, hn::Set(d4, scale)), d4, s + m * pitch);
  }
}

void attention_scores(const float* q, int64_t heads, const float* const* rows, int64_t count, float scale, float* s,
                      int64_t pitch) {
  for (int64_t r = 0; r < count; r += 4) {
    const float *four[4], *next[4];
    for (int64_t k = 0; k < 4; ++k) {
      four[k] = rows[HWY_MIN(r + k, count - 1)];
      next[k] = rows[HWY_MIN(r + 4 + k, count - 1)];
    }
    int64_t h = 0;
    for (; h + 4 <= heads; h += 4) scores_tile<4>(q + h * kHeadDim, four, next, scale, s + h * pitch + r, pitch);
    for (; h + 2 <= heads; h += 2) scores_tile<2>(q + h * kHeadDim, four, next, scale, s + h * pitch + r, pitch);
    for (; h < heads; ++h) scores_tile<1>(q + h * kHeadDim, four, next, scale, s + h * pitch + r, pitch);
  }
}

cpu::SoftmaxSums attention_softmax(float* s, int64_t n) {
  const DF d;
  const float lowest = hwy::LowestValue<float>();
  for (int64_t i = n; i < (n + kLanes - 1) / kLanes * kLanes; ++i) s[i] = -1.0f / 0.0f;
  auto top = hn::Set(d, lowest);
  for (int64_t i = 0; i < n; i += kLanes) top = hn::Max(top, hn::LoadU(d, s + i));
  const auto most = hn::MaxOfLanes(d, top);
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto p = hn::Exp(d, hn::Sub(hn::LoadU(d, s + i), most));
    sum = hn::Add(sum, p);
    hn::StoreU(round_to_bf16(d, p), d, s + i);
  }
  return {hn::GetLane(most), hn::GetLane(hn::SumOfLanes(d, sum))};
}

template <int M>
HWY_NOINLINE void values_tile(const float* HWY_RESTRICT p, int64_t pitch, const float* const* rows, int64_t count,
                              bool first, int64_t at, float* HWY_RESTRICT o) {
  const DF d;
  VF acc[M][4];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) acc[m][k] = first ? hn::Zero(d) : hn::Load(d, o + m * kHeadDim + at + k * kLanes);
  for (int64_t r = 0; r < count; ++r) {
    const float* row = rows[r] + at;
    const auto v0 = hn::Load(d, row), v1 = hn::Load(d, row + kLanes);
    const auto v2 = hn::Load(d, row + 2 * kLanes), v3 = hn::Load(d, row + 3 * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto w = hn::Set(d, p[m * pitch + r]);
      acc[m][0] = hn::MulAdd(w, v0, acc[m][0]);
      acc[m][1] = hn::MulAdd(w, v1, acc[m][1]);
      acc[m][2] = hn::MulAdd(w, v2, acc[m][2]);
      acc[m][3] = hn::MulAdd(w, v3, acc[m][3]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) hn::Store(acc[m][k], d, o + m * kHeadDim + at + k * kLanes);
}

void attention_values(const float* p, int64_t pitch, int64_t heads, const float* const* rows, int64_t count, bool first,
                      float* o) {
  for (int64_t at = 0; at < kHeadDim; at += 4 * kLanes) {
    int64_t h = 0;
    for (; h + 4 <= heads; h += 4) values_tile<4>(p + h * pitch, pitch, rows, count, first, at, o + h * kHeadDim);
    for (; h + 2 <= heads; h += 2) values_tile<2>(p + h * pitch, pitch, rows, count, first, at, o + h * kHeadDim);
    for (; h < heads; ++h) values_tile<1>(p + h * pitch, pitch, rows, count, first, at, o + h * kHeadDim);
  }
}

void attention_output(const float* o, float den, const float* cosine, const float* sine, bf16* out) {
  const DF d;
  const U32<DF> du;
  const auto by = hn::Set(d, den);
  auto* packed = reinterpret_cast<uint8_t*>(out);
  for (int64_t i = 0; i < kHeadDim; i += 2 * kLanes) {
    auto even = round_to_bf16(d, hn::Div(hn::Load(d, o + i), by));
    auto odd = round_to_bf16(d, hn::Div(hn::Load(d, o + i + kLanes), by));
    if (cosine && i >= kNopeDim) {
      const auto c = hn::LoadU(d, cosine + (i - kNopeDim) / 2), s = hn::LoadU(d, sine + (i - kNopeDim) / 2);
      const auto a = hn::Add(hn::Mul(even, c), hn::Mul(odd, s));
      const auto b = hn::Sub(hn::Mul(odd, c), hn::Mul(even, s));
      even = round_to_bf16(d, a);
      odd = round_to_bf16(d, b);
    }
    const auto pairs = hn::Or(hn::ShiftRight<16>(hn::BitCast(du, even)), hn::BitCast(du, odd));
    hn::StoreU(hn::BitCast(U8<DF>(), pairs), U8<DF>(), packed + 2 * i);
  }
}

#else  // HWY_SCALAR: nothing here is called

void decode_kv_row(RowFormat, const std::byte*, const std::byte*, float*) {}
void load_query(const bf16*, float*) {}
void attention_scores(const float*, int64_t, const float* const*, int64_t, float, float*, int64_t) {}
cpu::SoftmaxSums attention_softmax(float*, int64_t) {
  return {};
}
void attention_values(const float*, int64_t, int64_t, const float* const*, int64_t, bool, float*) {}
void attention_output(const float*, float, const float*, const float*, bf16*) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(decode_kv_row);
HWY_EXPORT(load_query);
HWY_EXPORT(attention_scores);
HWY_EXPORT(attention_softmax);
HWY_EXPORT(attention_values);
HWY_EXPORT(attention_output);

namespace cpu {

void decode_kv_row(RowFormat format, const std::byte* data, const std::byte* scales, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_kv_row)(format, data, scales, out);
}

void load_query(const bf16* q, float* out) {
  HWY_DYNAMIC_DISPATCH(load_query)(q, out);
}

void attention_scores(const float* q, int64_t heads, const float* const* rows, int64_t count, float scale, float* s,
                      int64_t pitch) {
  HWY_DYNAMIC_DISPATCH(attention_scores)(q, heads, rows, count, scale, s, pitch);
}

SoftmaxSums attention_softmax(float* s, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(attention_softmax)(s, n);
}

void attention_values(const float* p, int64_t pitch, int64_t heads, const float* const* rows, int64_t count, bool first,
                      float* o) {
  HWY_DYNAMIC_DISPATCH(attention_values)(p, pitch, heads, rows, count, first, o);
}

void attention_output(const float* o, float den, const float* cosine, const float* sine, bf16* out) {
  HWY_DYNAMIC_DISPATCH(attention_output)(o, den, cosine, sine, out);
}

}  // namespace cpu
}  // namespace fathom::ops
#endif
