// Activations as the products of product.cpp take them: fp32 in the column order of the weight's codec.
#include "ops/cpu/product.h"

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/prepare.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
using cpu::Codec;

/// bf16 row -> fp32 in pair order, zeros up to the pitch.
void prepare_bf16(const bf16* x, int64_t columns, float* out) {
  const D4 d;
  const U32<D4> du;
  int64_t k = 0;
  for (; k + 8 <= columns; k += 8) {
    hn::Vec<D4> even, odd;
    split_bf16(d, hn::BitCast(du, hn::LoadU(U16<D4>(), reinterpret_cast<const uint16_t*>(x + k))), even, odd);
    hn::StoreU(even, d, out + k);
    hn::StoreU(odd, d, out + k + 4);
  }
  for (const int64_t end = cpu::x_pitch(columns); k < end; k += 8)
    for (int64_t i = 0; i < 8; ++i) out[k + i % 2 * 4 + i / 2] = k + i < columns ? to_float(x[k + i]) : 0.0f;
}

/// Place of column k in pair order or nibble order.
constexpr int64_t pair_place(int64_t k) {
  return k / 8 * 8 + k % 2 * 4 + k % 8 / 2;
}
constexpr int64_t nibble_place(int64_t k) {
  return k / 32 * 32 + k % 8 * 4 + k % 32 / 8;
}

HWY_INLINE bool any_nan(const e4m3* codes, int64_t n) {
  uint8_t found = 0;
  for (int64_t i = 0; i < n; ++i) found |= static_cast<uint8_t>((codes[i].bits & 0x7F) == 0x7F);
  return found != 0;
}

/// Codes and scales of a row (a multiple of 128 columns) -> fp32, in pair order or in nibble order.
template <bool kNibbles>
void prepare_fp8(const e4m3* codes, const e8m0* scale, int64_t columns, float* out) {
  const D4 d;
  for (int64_t block = 0; block < columns; block += 128) {
    const float unit = to_float(scale[block / 128]);
    if (HWY_UNLIKELY(any_nan(codes + block, 128))) {
      for (int64_t k = block; k < block + 128; ++k)
        out[kNibbles ? nibble_place(k) : pair_place(k)] = to_float(codes[k]) * unit;
      continue;
    }
    const auto factor = hn::Set(d, unit * kE4m3Unit);
    for (int64_t k = block; k < block + 128; k += 32) {
      hn::Vec<D4> v[8];
      decode_e4m3(d, hn::LoadU(U8<D4>(), reinterpret_cast<const uint8_t*>(codes + k)), factor, v);
      decode_e4m3(d, hn::LoadU(U8<D4>(), reinterpret_cast<const uint8_t*>(codes + k + 16)), factor, v + 4);
      if constexpr (kNibbles) {
        hn::Vec<D4> even[4] = {v[0], v[2], v[4], v[6]}, odd[4] = {v[1], v[3], v[5], v[7]};
        transpose_4x4(even);
        transpose_4x4(odd);
        for (int i = 0; i < 4; ++i) v[2 * i] = even[i], v[2 * i + 1] = odd[i];
      }
      for (int i = 0; i < 8; ++i) hn::StoreU(v[i], d, out + k + 4 * i);
    }
  }
}

/// The column order that the codec of a weight asks for.
void prepare_fp8_for(Codec codec, const e4m3* codes, const e8m0* scale, int64_t columns, float* out) {
  if (codec == Codec::mxfp4 || codec == Codec::nvfp4) return prepare_fp8<true>(codes, scale, columns, out);
  prepare_fp8<false>(codes, scale, columns, out);
}

/// 128 e2m1 codes with a scale for each 32 -> fp32 in nibble order.
void prepare_fp4(const uint8_t* codes, const uint8_t* scale, float* out) {
  const D4 d;
  for (int64_t k = 0; k < 4; ++k) {
    hn::Vec<D4> v[8];
    decode_e2m1(d, hn::LoadU(U8<D4>(), codes + 16 * k), hn::Set(d, to_float(e8m0{scale[k]})), v);
    for (int i = 0; i < 8; ++i) hn::StoreU(v[i], d, out + 32 * k + 4 * i);
  }
}

#else  // HWY_SCALAR: nothing here is called

void prepare_bf16(const bf16*, int64_t, float*) {}
void prepare_fp8_for(cpu::Codec, const e4m3*, const e8m0*, int64_t, float*) {}
void prepare_fp4(const uint8_t*, const uint8_t*, float*) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(prepare_bf16);
HWY_EXPORT(prepare_fp8_for);
HWY_EXPORT(prepare_fp4);

namespace cpu {

void prepare_bf16(const bf16* x, int64_t columns, float* out) {
  HWY_DYNAMIC_DISPATCH(prepare_bf16)(x, columns, out);
}

void prepare_fp8(Codec codec, const e4m3* codes, const e8m0* scale, int64_t columns, float* out) {
  HWY_DYNAMIC_DISPATCH(prepare_fp8_for)(codec, codes, scale, columns, out);
}

void prepare_fp4(const uint8_t* codes, const uint8_t* scale, float* out) {
  HWY_DYNAMIC_DISPATCH(prepare_fp4)(codes, scale, out);
}

}  // namespace cpu
}  // namespace fathom::ops
#endif
