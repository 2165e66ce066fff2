// SIMD building blocks of the CPU variants, for one Highway target at a time (included through foreach_target).
//
// Vectors are seen as blocks of four fp32 lanes. A product of matrices gives every block its own row of the weight and
// its lanes consecutive columns, so that decoding moves data inside blocks only and a row needs four partial sums.
// Columns come in *pair order*: of every 8, first the even ones, then the odd ones (what splitting packed pairs gives),
// or, for 4-bit weights, in *nibble order*: of every 32, columns j, 8+j, 16+j, 24+j for j = 0..7. Products do not care
// as long as both operands have the same order.
#if defined(FATHOM_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_CPU_SIMD_INL_H_
#undef FATHOM_OPS_CPU_SIMD_INL_H_
#else
#define FATHOM_OPS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "base/small_floats.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using D4 = hn::FixedTag<float, 4>;
using VF = hn::Vec<DF>;
template <class D>
using U8 = hn::Repartition<uint8_t, D>;
template <class D>
using U16 = hn::Repartition<uint16_t, D>;
template <class D>
using U32 = hn::RebindToUnsigned<D>;
inline constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
inline constexpr int64_t kBlocks = kLanes / 4;

/// The vector whose block b is part(b), a vector of 16 bytes.
template <class D, class Part>
HWY_INLINE hn::Vec<D> from_blocks(D d, const Part& part) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) == 64) {
    const hn::Half<D> dh;
    return hn::Combine(d, hn::Combine(dh, part(3), part(2)), hn::Combine(dh, part(1), part(0)));
  } else if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) == 32) {
    return hn::Combine(d, part(1), part(0));
  } else {
    return part(0);
  }
}

// ------------------------------------------------------------------------------------------------ bf16

/// 2N packed bf16 values, seen as u32 lanes -> the even ones and the odd ones.
template <class D>
HWY_INLINE void split_bf16(D d, hn::Vec<U32<D>> packed, hn::Vec<D>& even, hn::Vec<D>& odd) {
  const U32<D> du;
  even = hn::BitCast(d, hn::ShiftLeft<16>(packed));
  odd = hn::BitCast(d, hn::And(packed, hn::Set(du, 0xFFFF0000u)));
}

template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const U32<D> du;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

/// The nearest bf16 (ties to even) in the upper half of each lane, anything in the lower half. A NaN stays one: those
/// that arithmetic makes have a mantissa far from the largest, so the carry cannot reach the sign.
template <class D>
HWY_INLINE hn::Vec<U32<D>> bf16_carry(D d, hn::Vec<D> v) {
  const U32<D> du;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  return hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFFu)));
}

template <class D>
HWY_INLINE hn::Vec<D> round_to_bf16(D d, hn::Vec<D> v) {
  return hn::BitCast(d, hn::And(bf16_carry(d, v), hn::Set(U32<D>(), 0xFFFF0000u)));
}

/// Stores the upper halves of the lanes.
template <class D>
HWY_INLINE void store_upper(D, hn::Vec<U32<D>> bits, bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16, reinterpret_cast<uint16_t*>(p));
}

/// Stores lanes that lie on the bf16 grid already.
template <class D>
HWY_INLINE void store_bf16_exact(D d, hn::Vec<D> v, bf16* p) {
  store_upper(d, hn::BitCast(U32<D>(), v), p);
}

template <class D>
HWY_INLINE void store_bf16(D d, hn::Vec<D> v, bf16* p) {
  store_upper(d, bf16_carry(d, v), p);
}

// ------------------------------------------------------------------------------------------------ e4m3

inline constexpr float kE4m3Unit = 256.0f;  // e4m3 bits moved into an fp16 read as value / 256

/// 4N e4m3 codes (codes of a block: 8 columns, then 8 more, see `pair_columns`) -> four vectors of values / 256. Every
/// finite code is exact, subnormals included, without an fp32 subnormal on the way; a NaN code reads as 480.
template <class D>
HWY_INLINE void decode_e4m3_plain(D d, hn::Vec<U8<D>> codes, hn::Vec<D>* out) {
  const hn::Repartition<int16_t, D> di;
  const hn::Rebind<hwy::float16_t, D> dh;
  const hn::Repartition<hwy::float16_t, D> dhh;
  const auto pairs = hn::BitCast(di, codes);
  const auto mask = hn::Set(di, static_cast<int16_t>(0xBF80));
  const auto even = hn::BitCast(dhh, hn::And(hn::ShiftRight<1>(hn::ShiftLeft<8>(pairs)), mask));
  const auto odd = hn::BitCast(dhh, hn::And(hn::ShiftRight<1>(pairs), mask));
  out[0] = hn::PromoteTo(d, hn::LowerHalf(dh, even));
  out[1] = hn::PromoteTo(d, hn::LowerHalf(dh, odd));
  out[2] = hn::PromoteTo(d, hn::UpperHalf(dh, even));
  out[3] = hn::PromoteTo(d, hn::UpperHalf(dh, odd));
}

/// The same times a scale that includes the factor 256.
template <class D>
HWY_INLINE void decode_e4m3(D d, hn::Vec<U8<D>> codes, hn::Vec<D> scale, hn::Vec<D>* out) {
  decode_e4m3_plain(d, codes, out);
  for (int i = 0; i < 4; ++i) out[i] = hn::Mul(out[i], scale);
}

/// Moves the first eight bytes of every block to the lower half of the vector, the other eight to the upper half.
HWY_INLINE hn::Vec<U8<DF>> pair_columns(hn::Vec<U8<DF>> bytes) {
  if constexpr (kLanes == 4) return bytes;
  const U32<DF> du;
  alignas(64) int32_t index[kLanes];
  for (int32_t i = 0; i < kLanes; ++i) {
    const int32_t q = i / 2, from = q < kBlocks ? 2 * q : 2 * (q - static_cast<int32_t>(kBlocks)) + 1;
    index[i] = 2 * from + i % 2;
  }
  return hn::BitCast(U8<DF>(), hn::TableLookupLanes(hn::BitCast(du, bytes), hn::SetTableIndices(du, index)));
}

/// Nearest e4m3 code (ties to even) of every lane, |v| <= 448 or NaN (-> 0x7F).
template <class D>
HWY_INLINE hn::Vec<U32<D>> encode_e4m3(D d, hn::Vec<D> v) {
  const U32<D> du;
  const auto u = hn::BitCast(du, v);
  const auto sign = hn::And(hn::ShiftRight<24>(u), hn::Set(du, 0x80u));
  const auto magnitude = hn::And(u, hn::Set(du, 0x7FFFFFFFu));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(du, 1u));
  const auto up = hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0x7FFFFu)));
  const auto normal = hn::Min(hn::Sub(hn::ShiftRight<20>(up), hn::Set(du, 120u << 3)), hn::Set(du, 0x7Eu));
  const auto magic = hn::Set(d, 16384.0f);  // its last mantissa bit is 2^-9, the subnormal step
  const auto tiny = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), magic)), hn::BitCast(du, magic));
  const auto is_tiny = hn::Lt(magnitude, hn::Set(du, 0x3C800000u));
  const auto code = hn::IfThenElse(is_tiny, tiny, normal);
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::Or(sign, hn::IfThenElse(nan, hn::Set(du, 0x7Fu), code));
}

template <class D>
HWY_INLINE void store_codes(D, hn::Vec<U32<D>> codes, e4m3* p) {
  const hn::Rebind<uint8_t, D> d8;
  hn::StoreU(hn::TruncateTo(d8, codes), d8, reinterpret_cast<uint8_t*>(p));
}

// ------------------------------------------------------------------------------------------------ e2m1

/// 16 bytes a block = 32 columns -> eight vectors in nibble order, times scale.
template <class D>
HWY_INLINE void decode_e2m1(D d, hn::Vec<U8<D>> bytes, hn::Vec<D> scale, hn::Vec<D>* out) {
  if constexpr (hn::MaxLanes(d) == 16) {
    const U32<D> du;
    alignas(64) static constexpr float kValue[16] = {0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                                     -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const auto table = hn::Load(d, kValue);
    const auto v = hn::BitCast(du, bytes);
    const auto look_up = [&](hn::Vec<U32<D>> nibble) HWY_ATTR {
#if HWY_IS_DEBUG_BUILD  // the hardware looks at four bits only
      nibble = hn::And(nibble, hn::Set(du, 15u));
#endif
      return hn::Mul(hn::TableLookupLanes(table, hn::IndicesFromVec(d, nibble)), scale);
    };
    out[0] = look_up(v);
    out[1] = look_up(hn::ShiftRight<4>(v));
    out[2] = look_up(hn::ShiftRight<8>(v));
    out[3] = look_up(hn::ShiftRight<12>(v));
    out[4] = look_up(hn::ShiftRight<16>(v));
    out[5] = look_up(hn::ShiftRight<20>(v));
    out[6] = look_up(hn::ShiftRight<24>(v));
    out[7] = look_up(hn::ShiftRight<28>(v));
  } else {
    const U8<D> d8;
    const hn::RebindToSigned<D> di;
    alignas(16) static constexpr uint8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
    const auto table = hn::LoadDup128(d8, kTwice);
    const auto half = hn::Mul(scale, hn::Set(d, 0.5f));
    const auto fifteen = hn::Set(d8, uint8_t{15});
    const auto low = hn::BitCast(di, hn::TableLookupBytes(table, hn::And(bytes, fifteen)));
    const auto upper = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(U16<D>(), bytes))), fifteen);
    const auto high = hn::BitCast(di, hn::TableLookupBytes(table, upper));
    const auto value = [&](hn::Vec<hn::RebindToSigned<D>> v)
                           HWY_ATTR { return hn::Mul(hn::ConvertTo(d, hn::ShiftRight<24>(v)), half); };
    out[0] = value(hn::ShiftLeft<24>(low));
    out[1] = value(hn::ShiftLeft<24>(high));
    out[2] = value(hn::ShiftLeft<16>(low));
    out[3] = value(hn::ShiftLeft<16>(high));
    out[4] = value(hn::ShiftLeft<8>(low));
    out[5] = value(hn::ShiftLeft<8>(high));
    out[6] = value(low);
    out[7] = value(high);
  }
}

// ------------------------------------------------------------------------------------------------ sums

/// Sums of the four lanes of every block of four vectors: lane (b, i) of the result = sum of block b of v[i].
template <class D>
HWY_INLINE hn::Vec<D> sum_blocks(D d, hn::Vec<D> v0, hn::Vec<D> v1, hn::Vec<D> v2, hn::Vec<D> v3) {
  const hn::Repartition<double, D> d64;
  const auto a = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const auto b = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, a), hn::BitCast(d64, b));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, a), hn::BitCast(d64, b));
  return hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
}

/// Rows and columns of a 4x4 matrix exchanged.
HWY_INLINE void transpose_4x4(hn::Vec<D4>* v) {
  const D4 d;
  const hn::Repartition<double, D4> d64;
  const auto a = hn::BitCast(d64, hn::InterleaveLower(d, v[0], v[1])),
             b = hn::BitCast(d64, hn::InterleaveUpper(d, v[0], v[1]));
  const auto c = hn::BitCast(d64, hn::InterleaveLower(d, v[2], v[3])),
             e = hn::BitCast(d64, hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(d64, a, c));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(d64, a, c));
  v[2] = hn::BitCast(d, hn::InterleaveLower(d64, b, e));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(d64, b, e));
}

#endif  // HWY_SCALAR
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
