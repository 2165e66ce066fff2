// Row-wise pieces of the CPU variants: norms, RoPE, quantisers, cache rows.
#include "ops/cpu/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rows.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// bf16 -> fp32 in place order.
void widen_row(const bf16* x, int64_t n, float* out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_bf16(d, x + i), d, out + i);
  for (; i < n; ++i) out[i] = to_float(x[i]);
}

/// Stores values of the bf16 grid.
void narrow_row(const float* x, int64_t n, bf16* out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16_exact(d, hn::LoadU(d, x + i), out + i);
  for (; i < n; ++i) out[i] = to_bf16(x[i]);
}

/// Sum of squares in double: squares of bf16 values are exact, so the result hardly depends on the order.
double sum_squares(const float* x, int64_t n) {
  const DF d;
  const hn::Repartition<double, DF> dd;
  const hn::Half<DF> dh;
  auto a = hn::Zero(dd), b = a;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto low = hn::PromoteTo(dd, hn::LowerHalf(dh, v)), high = hn::PromoteTo(dd, hn::UpperHalf(dh, v));
    a = hn::MulAdd(low, low, a);
    b = hn::MulAdd(high, high, b);
  }
  double sum = hn::GetLane(hn::SumOfLanes(dd, hn::Add(a, b)));
  for (; i < n; ++i) sum += double{x[i]} * double{x[i]};
  return sum;
}

float rms_factor(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(static_cast<float>(sum_squares(x, n) / static_cast<double>(n)) + eps);
}

/// RMSNorm in place, rounded to bf16 once.
void rmsnorm_row(float* x, int64_t n, const bf16* weight, float eps) {
  const DF d;
  const float factor = rms_factor(x, n, eps);
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto v = hn::Mul(hn::Mul(hn::LoadU(d, x + i), f), load_bf16(d, weight + i));
    hn::StoreU(round_to_bf16(d, v), d, x + i);
  }
  for (; i < n; ++i) x[i] = round_bf16(x[i] * factor * to_float(weight[i]));
}

using DD = hn::CappedTag<double, 8>;
using VD = hn::Vec<DD>;

/// Cosine and sine in double of angles below 2^20 * pi / 2: reduction by multiples of pi / 2 kept in three parts of 33
/// bits (products with the quotient are exact), then the polynomials of fdlibm's kernels on [-pi / 4, pi / 4].
HWY_INLINE void cos_sin(DD d, VD x, VD& cosine, VD& sine) {
  const auto set = [&](double v) HWY_ATTR { return hn::Set(d, v); };
  const auto n = hn::Round(hn::Mul(x, set(6.36619772367581382433e-01)));
  auto r = hn::Sub(x, hn::Mul(n, set(1.57079632673412561417e+00)));
  r = hn::Sub(r, hn::Mul(n, set(6.07710050630396597660e-11)));
  r = hn::Sub(r, hn::Mul(n, set(2.02226624879595063154e-21)));
  const auto z = hn::Mul(r, r);
  auto s = set(1.58969099521155010221e-10);
  s = hn::MulAdd(s, z, set(-2.50507602534068634195e-08));
  s = hn::MulAdd(s, z, set(2.75573137070700676789e-06));
  s = hn::MulAdd(s, z, set(-1.98412698298579493134e-04));
  s = hn::MulAdd(s, z, set(8.33333333332248946124e-03));
  s = hn::MulAdd(s, z, set(-1.66666666666666324348e-01));
  s = hn::MulAdd(hn::Mul(z, r), s, r);
  auto c = set(-1.13596475577881948265e-11);
  c = hn::MulAdd(c, z, set(2.08757232129817482790e-09));
  c = hn::MulAdd(c, z, set(-2.75573143513906633035e-07));
  c = hn::MulAdd(c, z, set(2.48015872894767294178e-05));
  c = hn::MulAdd(c, z, set(-1.38888888888741095749e-03));
  c = hn::MulAdd(c, z, set(4.16666666666666019037e-02));
  c = hn::MulAdd(hn::Mul(z, z), c, hn::Sub(set(1.0), hn::Mul(set(0.5), z)));
  // Quadrant 0..3: the odd ones exchange the two, signs follow.
  const auto q = hn::Sub(n, hn::Mul(set(4.0), hn::Floor(hn::Mul(n, set(0.25)))));
  const auto odd = hn::Or(hn::Eq(q, set(1.0)), hn::Eq(q, set(3.0)));
  const auto first = hn::IfThenElse(odd, s, c), second = hn::IfThenElse(odd, c, s);
  const auto turned = hn::Or(hn::Eq(q, set(1.0)), hn::Eq(q, set(2.0)));
  cosine = hn::IfThenElse(turned, hn::Neg(first), first);
  sine = hn::IfThenElse(hn::Ge(q, set(2.0)), hn::Neg(second), second);
}

void cosines_and_sines(int32_t position, const float* freq, float* cosine, float* sine) {
  const DD d;
  const hn::Rebind<float, DD> df;
  const auto p = hn::Set(df, static_cast<float>(position));
  for (int64_t i = 0; i < kRopeDim / 2; i += static_cast<int64_t>(hn::MaxLanes(d))) {
    VD c, s;
    cos_sin(d, hn::PromoteTo(d, hn::Mul(p, hn::LoadU(df, freq + i))), c, s);
    hn::StoreU(hn::DemoteTo(df, c), df, cosine + i);
    hn::StoreU(hn::DemoteTo(df, s), df, sine + i);
  }
}

/// Rotates 64 channels, bf16 result. Products are rounded one by one, as the specification has it.
void rope_row(float* x, const cpu::Angles& angles) {
  const DF d;
  for (int64_t i = 0; i < kRopeDim; i += kLanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto turned = hn::Mul(hn::Shuffle2301(v), hn::Load(d, angles.sine + i));
    const auto sum = hn::Add(hn::Mul(v, hn::Load(d, angles.cosine + i)), turned);
    hn::StoreU(round_to_bf16(d, sum), d, x + i);
  }
}

float largest_magnitude(const float* x, int64_t n) {
  const DF d;
  auto top = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) top = hn::Max(top, hn::Abs(hn::LoadU(d, x + i)));
  float most = hn::GetLane(hn::MaxOfLanes(d, top));
  for (; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

/// One group under one scale -> e4m3 codes.
e8m0 quantize_row_group(const float* x, int64_t n, e4m3* codes) {
  const DF d;
  const e8m0 scale = e4m3_scale(largest_magnitude(x, n));
  const float inverse = reciprocal(scale);
  const auto factor = hn::Set(d, inverse);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_codes(d, encode_e4m3(d, hn::Mul(hn::LoadU(d, x + i), factor)), codes + i);
  for (; i < n; ++i) codes[i] = to_e4m3(x[i] * inverse);
  return scale;
}

/// act_quant of a row per 128 channels.
void act_quant_row(const float* x, int64_t n, e4m3* codes, e8m0* scale) {
  for (int64_t at = 0; at < n; at += 128)
    scale[at / 128] = quantize_row_group(x + at, std::min<int64_t>(128, n - at), codes + at);
}

/// Writes 512 bf16-grid values as a KV row, the first 448 rounded to e4m3 per 64 channels in both formats.
void store_kv_row(const KvPool& pool, RowFormat format, int64_t slot, const float* kv) {
  std::byte* data = pool.row_data(format, slot);
  e4m3 codes[kNopeDim];
  uint8_t scales[kV4ScaleBytes] = {};
  for (int g = 0; g < kKvScales; ++g)
    scales[g] = quantize_row_group(kv + g * kKvGroup, kKvGroup, codes + g * kKvGroup).bits;
  bf16 tail[kHeadDim];
  if (format == RowFormat::bf16) {
    for (int i = 0; i < kNopeDim; ++i) tail[i] = to_bf16(to_float(codes[i]) * to_float(e8m0{scales[i / kKvGroup]}));
    narrow_row(kv + kNopeDim, kRopeDim, tail + kNopeDim);
    std::memcpy(data, tail, sizeof tail);
    return;
  }
  narrow_row(kv + kNopeDim, kRopeDim, tail);
  std::memcpy(data, codes, kNopeDim);
  std::memcpy(data + kNopeDim, tail, 2 * kRopeDim);
  std::memcpy(pool.row_scales(slot), scales, kV4ScaleBytes);
}

/// Walsh-Hadamard transform of 128 channels times 128^-0.5, bf16 result. Sums are exact in double.
void hadamard_row(float* x) {
  const hn::CappedTag<double, 8> d;
  constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(d));
  alignas(64) double v[128];
  for (int64_t i = 0; i < 128; i += 4) {  // the first two rounds
    const double a = double{x[i]} + double{x[i + 1]}, b = double{x[i]} - double{x[i + 1]};
    const double c = double{x[i + 2]} + double{x[i + 3]}, e = double{x[i + 2]} - double{x[i + 3]};
    v[i] = a + c, v[i + 1] = b + e, v[i + 2] = a - c, v[i + 3] = b - e;
  }
  for (int64_t half = 4; half < 128; half *= 2) {
    for (int64_t i = 0; i < 128; i += 2 * half) {
      if (half < kDoubles) {
        for (int64_t k = i; k < i + half; ++k) {
          const double a = v[k], b = v[k + half];
          v[k] = a + b, v[k + half] = a - b;
        }
        continue;
      }
      for (int64_t k = i; k < i + half; k += kDoubles) {
        const auto a = hn::Load(d, v + k), b = hn::Load(d, v + k + half);
        hn::Store(hn::Add(a, b), d, v + k);
        hn::Store(hn::Sub(a, b), d, v + k + half);
      }
    }
  }
  const float factor = static_cast<float>(std::pow(128.0, -0.5));
  for (int64_t i = 0; i < 128; ++i) x[i] = round_bf16(static_cast<float>(v[i]) * factor);
}

/// 32 channels -> e2m1 codes, low nibble = even channel.
e8m0 quantize_fp4_group(const float* x, uint8_t* codes) {
  const DF d;
  const U32<DF> du;
  const e8m0 scale = e2m1_scale(largest_magnitude(x, kIndexGroup));
  const auto factor = hn::Set(d, reciprocal(scale));
  alignas(64) uint32_t nibble[kIndexGroup];
  const auto zero = hn::Zero(du), one = hn::Set(du, 1u);
  for (int64_t i = 0; i < kIndexGroup; i += kLanes) {
    const auto v = hn::Mul(hn::LoadU(d, x + i), factor);
    const auto a = hn::Abs(v);
    // Ties go to the even code: a boundary below an odd code is exclusive, one below an even code inclusive.
    const auto above = [&](float bound) HWY_ATTR {
      return hn::IfThenElse(hn::RebindMask(du, hn::Gt(a, hn::Set(d, bound))), one, zero);
    };
    const auto from = [&](float bound) HWY_ATTR {
      return hn::IfThenElse(hn::RebindMask(du, hn::Ge(a, hn::Set(d, bound))), one, zero);
    };
    auto code = hn::Add(hn::Add(above(0.25f), from(0.75f)), hn::Add(above(1.25f), from(1.75f)));
    code = hn::Add(code, hn::Add(hn::Add(above(2.5f), from(3.5f)), above(5.0f)));
    const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(du, v)), hn::Set(du, 8u));
    hn::Store(hn::Or(code, sign), du, nibble + i);
  }
  for (int64_t i = 0; i < kIndexGroup; i += 2) codes[i / 2] = static_cast<uint8_t>(nibble[i] | nibble[i + 1] << 4);
  return scale;
}

/// fp32 -> bf16.
void store_bf16_row(const float* y, int64_t n, bf16* out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(d, hn::LoadU(d, y + i), out + i);
  for (; i < n; ++i) out[i] = to_bf16(y[i]);
}

void quantize_fp4_row(const float* x, uint8_t* codes, uint8_t* scales) {
  for (int g = 0; g < kIndexScaleBytes; ++g)
    scales[g] = quantize_fp4_group(x + g * kIndexGroup, codes + g * kIndexGroup / 2).bits;
}

/// gate = bf(weight * (silu(min(gate, limit)) * clamp(up))), gate and up rounded to bf16 first; n a multiple of 16.
void swiglu_row(float* gate, const float* up, int64_t n, float limit, const float* weight) {
  const DF d;
  const auto most = hn::Set(d, limit), least = hn::Set(d, -limit), one = hn::Set(d, 1.0f);
  const auto factor = hn::Set(d, weight ? *weight : 1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {  // arguments in this order keep NaN
    const auto a = hn::Min(most, round_to_bf16(d, hn::LoadU(d, gate + i)));
    const auto b = hn::Max(least, hn::Min(most, round_to_bf16(d, hn::LoadU(d, up + i))));
    const auto silu = hn::Div(a, hn::Add(one, hn::Exp(d, hn::Neg(a))));
    auto h = hn::Mul(silu, b);
    if (weight) h = hn::Mul(factor, h);
    hn::StoreU(round_to_bf16(d, h), d, gate + i);
  }
}

/// out = bf(parts added in order, times factor); n a multiple of 16.
void add_parts_row(const bf16* const* parts, int64_t count, int64_t n, float factor, bf16* out) {
  const DF d;
  for (int64_t i = 0; i < n; i += kLanes) {
    auto sum = hn::Zero(d);
    for (int64_t p = 0; p < count; ++p) sum = hn::Add(sum, load_bf16(d, parts[p] + i));
    store_bf16(d, hn::Mul(sum, hn::Set(d, factor)), out + i);
  }
}

/// One query head in place: RMS normalisation, then RoPE.
void query_head_row(bf16* q, float eps, bool bf16_steps, const cpu::Angles& angles) {
  const DF d;
  alignas(64) float x[kHeadDim];
  widen_row(q, kHeadDim, x);
  float factor;
  if (bf16_steps) {
    const hn::Repartition<double, DF> dd;
    const hn::Half<DF> dh;
    auto sum = hn::Zero(dd);
    for (int64_t i = 0; i < kHeadDim; i += kLanes) {
      const auto v = hn::Load(d, x + i);
      const auto square = round_to_bf16(d, hn::Mul(v, v));
      sum = hn::Add(
          sum, hn::Add(hn::PromoteTo(dd, hn::LowerHalf(dh, square)), hn::PromoteTo(dd, hn::UpperHalf(dh, square))));
    }
    const double total = hn::GetLane(hn::SumOfLanes(dd, sum));
    const float mean = round_bf16(static_cast<float>(total / kHeadDim));
    factor = round_bf16(1.0f / std::sqrt(round_bf16(mean + eps)));
  } else {
    factor = rms_factor(x, kHeadDim, eps);
  }
  const auto f = hn::Set(d, factor);
  for (int64_t i = 0; i < kHeadDim; i += kLanes) hn::Store(round_to_bf16(d, hn::Mul(hn::Load(d, x + i), f)), d, x + i);
  rope_row(x + kNopeDim, angles);
  narrow_row(x, kHeadDim, q);
}

#else  // HWY_SCALAR: nothing here is called

void cosines_and_sines(int32_t, const float*, float*, float*) {}
void widen_row(const bf16*, int64_t, float*) {}
void narrow_row(const float*, int64_t, bf16*) {}
void store_bf16_row(const float*, int64_t, bf16*) {}
double sum_squares(const float*, int64_t) {
  return 0;
}
void rmsnorm_row(float*, int64_t, const bf16*, float) {}
void rope_row(float*, const cpu::Angles&) {}
void act_quant_row(const float*, int64_t, e4m3*, e8m0*) {}
void store_kv_row(const KvPool&, RowFormat, int64_t, const float*) {}
void quantize_fp4_row(const float*, uint8_t*, uint8_t*) {}
void hadamard_row(float*) {}
void swiglu_row(float*, const float*, int64_t, float, const float*) {}
void add_parts_row(const bf16* const*, int64_t, int64_t, float, bf16*) {}
void query_head_row(bf16*, float, bool, const cpu::Angles&) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(widen_row);
HWY_EXPORT(narrow_row);
HWY_EXPORT(store_bf16_row);
HWY_EXPORT(sum_squares);
HWY_EXPORT(rmsnorm_row);
HWY_EXPORT(cosines_and_sines);
HWY_EXPORT(rope_row);
HWY_EXPORT(act_quant_row);
HWY_EXPORT(store_kv_row);
HWY_EXPORT(quantize_fp4_row);
HWY_EXPORT(hadamard_row);
HWY_EXPORT(swiglu_row);
HWY_EXPORT(add_parts_row);
HWY_EXPORT(query_head_row);

namespace cpu {

void cosines_and_sines(int32_t position, const float* freq, float* cosine, float* sine) {
  float most = 0;
  for (int i = 0; i < kRopeDim / 2; ++i) most = std::max(most, std::abs(static_cast<float>(position) * freq[i]));
  if (most < 1.6e6f) {
    HWY_DYNAMIC_DISPATCH(cosines_and_sines)(position, freq, cosine, sine);
    return;
  }
  for (int i = 0; i < kRopeDim / 2; ++i) {  // beyond the range of the fast reduction
    const double angle = static_cast<float>(position) * freq[i];
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
  }
}

void make_angles(int32_t position, const float* freq, bool inverse, Angles& out) {
  float cosine[kRopeDim / 2], sine[kRopeDim / 2];
  cosines_and_sines(position, freq, cosine, sine);
  for (int i = 0; i < kRopeDim / 2; ++i) {
    out.cosine[2 * i] = out.cosine[2 * i + 1] = cosine[i];
    out.sine[2 * i] = inverse ? sine[i] : -sine[i];
    out.sine[2 * i + 1] = -out.sine[2 * i];
  }
}

void widen(const bf16* x, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_row)(x, n, out);
}
void narrow(const float* x, int64_t n, bf16* out) {
  HWY_DYNAMIC_DISPATCH(narrow_row)(x, n, out);
}
void store_bf16(const float* x, int64_t n, bf16* out) {
  HWY_DYNAMIC_DISPATCH(store_bf16_row)(x, n, out);
}
double sum_squares(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(sum_squares)(x, n);
}
void rmsnorm(float* x, int64_t n, const bf16* weight, float eps) {
  HWY_DYNAMIC_DISPATCH(rmsnorm_row)(x, n, weight, eps);
}
void rope(float* x, const Angles& angles) {
  HWY_DYNAMIC_DISPATCH(rope_row)(x, angles);
}
void act_quant(const float* x, int64_t n, e4m3* codes, e8m0* scale) {
  HWY_DYNAMIC_DISPATCH(act_quant_row)(x, n, codes, scale);
}
void write_kv_row(const KvPool& pool, RowFormat format, int64_t slot, const float* kv) {
  HWY_DYNAMIC_DISPATCH(store_kv_row)(pool, format, slot, kv);
}
void quantize_fp4(const float* x, uint8_t* codes, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(quantize_fp4_row)(x, codes, scales);
}
void hadamard(float* x) {
  HWY_DYNAMIC_DISPATCH(hadamard_row)(x);
}
void swiglu(float* gate, const float* up, int64_t n, float limit, const float* weight) {
  HWY_DYNAMIC_DISPATCH(swiglu_row)(gate, up, n, limit, weight);
}
void add_parts(const bf16* const* parts, int64_t count, int64_t n, float factor, bf16* out) {
  HWY_DYNAMIC_DISPATCH(add_parts_row)(parts, count, n, factor, out);
}
void query_head(bf16* q, float eps, bool bf16_steps, const Angles& angles) {
  HWY_DYNAMIC_DISPATCH(query_head_row)(q, eps, bf16_steps, angles);
}

}  // namespace cpu
}  // namespace fathom::ops
#endif
