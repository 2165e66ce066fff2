// Scalar arithmetic of the small kernels: products and sums that the compiler may not fuse, sums with an error term,
// rotations, counters.
//
// A result that is rounded to bf16 or quantised must round where the specification says. The compiler fuses a product
// and a sum into one instruction with one rounding; multiply() and add() forbid it.
#pragma once

#include <cmath>

#include "ops/device/gpu.cuh"

#include "base/small_floats.h"

namespace fathom::ops::device {

#ifdef FATHOM_GPU_EMULATOR
inline float multiply(float a, float b) {
  return a * b;
}
inline float add(float a, float b) {
  return a + b;
}
inline float reciprocal_fast(float x) {
  return 1.0f / x;
}
inline double shuffle_xor(double v, int mask) {
  const auto word = std::bit_cast<uint64_t>(v);
  return std::bit_cast<double>(emulator::exchange(&word, 1)[thread_index() % 32 ^ mask][0]);
}
inline uint32_t atomic_add(uint32_t* p, uint32_t v) {
  const uint32_t old = *p;
  *p += v;
  return old;
}
inline uint32_t load_l2(const uint32_t* p) {
  return *p;
}
inline uint32_t load_acquire(const uint32_t* p) {
  return *p;
}
inline uint32_t ballot(bool v) {
  const uint64_t word = v;
  const auto& all = emulator::exchange(&word, 1);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(all[i][0] != 0) << i;
  return bits;
}
inline int count_bits(uint32_t v) {
  return std::popcount(v);
}
inline uint32_t sum_of_warp(uint32_t v) {
  const uint64_t word = v;
  const auto& all = emulator::exchange(&word, 1);
  uint64_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += all[i][0];
  return static_cast<uint32_t>(sum);
}
/// {max(low, 0), max(high, 0)} rounded to nearest even.
inline uint32_t pack_relu_bf16x2(float low, float high) {
  return pack_bf16x2(std::fmax(low, 0.0f), std::fmax(high, 0.0f));
}
/// The e4m3 codes of two values as to_e4m3() makes them, low one first.
inline uint32_t pack_e4m3x2(float low, float high) {
  return to_e4m3(low).bits | static_cast<uint32_t>(to_e4m3(high).bits) << 8;
}
inline int shuffle_int(int v, int lane) {
  return std::bit_cast<int>(shuffle_from(std::bit_cast<float>(v), lane));
}
#else
FATHOM_DEVICE float multiply(float a, float b) {
  return __fmul_rn(a, b);
}
FATHOM_DEVICE float add(float a, float b) {
  return __fadd_rn(a, b);
}
/// 1 / x to 1 ulp, x normal; one instruction, where the rounded reciprocal would branch.
FATHOM_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FATHOM_DEVICE double shuffle_xor(double v, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}
/// Of shared or global memory.
FATHOM_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t v) {
  return atomicAdd(p, v);
}
/// Memory that other blocks wrote in this launch: through L2.
FATHOM_DEVICE uint32_t load_l2(const uint32_t* p) {
  return __ldcg(p);
}
FATHOM_DEVICE uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
/// Bit i: the value of lane i.
FATHOM_DEVICE uint32_t ballot(bool v) {
  return __ballot_sync(0xFFFFFFFFu, v);
}
FATHOM_DEVICE int count_bits(uint32_t v) {
  return __popc(v);
}
/// The sum of the values of all lanes.
FATHOM_DEVICE uint32_t sum_of_warp(uint32_t v) {
  return __reduce_add_sync(0xFFFFFFFFu, v);
}
/// {max(low, 0), max(high, 0)} rounded to nearest even.
FATHOM_DEVICE uint32_t pack_relu_bf16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
/// The e4m3 codes of two values as to_e4m3() makes them (a NaN may lose its sign), low one first.
FATHOM_DEVICE uint32_t pack_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
#else
  return to_e4m3(low).bits | static_cast<uint32_t>(to_e4m3(high).bits) << 8;
#endif
}
FATHOM_DEVICE int shuffle_int(int v, int lane) {
  return __shfl_sync(0xFFFFFFFFu, v, lane);
}
#endif

FATHOM_DEVICE int lane_index() {
  return thread_index() % 32;
}
FATHOM_DEVICE int warp_index() {
  return thread_index() / 32;
}

/// A sum of fp32 values with the rounding errors kept beside it: as exact as fp64 for the rows of a model.
struct Sum {
  float high = 0, low = 0;
};
FATHOM_DEVICE void accumulate(Sum& s, float v) {
  const float t = add(s.high, v), b = add(t, -s.high);
  s.low = add(s.low, add(add(s.high, -add(t, -b)), add(v, -b)));
  s.high = t;
}
FATHOM_DEVICE void accumulate_product(Sum& s, float a, float b) {
  const float p = multiply(a, b);
  accumulate(s, p);
  s.low = add(s.low, fmaf(a, b, -p));
}
FATHOM_DEVICE float value(Sum s) {
  return add(s.high, s.low);
}

/// Symmetric: both sides of an exchange get the same bits.
FATHOM_DEVICE Sum merged(Sum a, Sum b) {
  const float low = add(a.low, b.low);
  Sum s{a.high, 0};
  accumulate(s, b.high);
  s.low = add(low, s.low);
  return s;
}
FATHOM_DEVICE Sum warp_sum(Sum s) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) s = merged(s, {shuffle_xor(s.high, mask), shuffle_xor(s.low, mask)});
  return s;
}

/// Sum over the lanes of a warp, the same bits in each. fp64: few values, and a short chain of dependent steps.
FATHOM_DEVICE double warp_sum(double s) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) s += shuffle_xor(s, mask);
  return s;
}
/// The largest of groups of `lanes` neighbouring lanes, a power of two.
FATHOM_DEVICE float group_max(float v, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

/// 1 / sqrt(sum / n + eps), each step rounded.
FATHOM_DEVICE float rms_factor(double squares, int n, float eps) {
  return 1.0f / sqrtf(add(static_cast<float>(squares) / static_cast<float>(n), eps));
}
FATHOM_DEVICE float rms_factor(Sum squares, int n, float eps) {
  return 1.0f / sqrtf(add(value(squares) / static_cast<float>(n), eps));
}
FATHOM_DEVICE float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

/// Two bf16 values of a word.
FATHOM_DEVICE float low_half(uint32_t word) {
  return std::bit_cast<float>(word << 16);
}
FATHOM_DEVICE float high_half(uint32_t word) {
  return std::bit_cast<float>(word & 0xFFFF0000u);
}

/// cos and sin of one RoPE pair. The angle is the fp32 product; its reduction to one turn is done in fp64, so that any
/// position is exact to fp32.
struct Turn {
  float cosine, sine;
};
FATHOM_DEVICE Turn turn_of(int32_t position, float frequency) {
  const float angle = multiply(static_cast<float>(position), frequency);
  const double turns = static_cast<double>(angle) * 0.15915494309189535;
  Turn t;
  sincos_pi(2 * static_cast<float>(turns - rint(turns)), &t.sine, &t.cosine);
  return t;
}
/// (a, b) turned, rounded to bf16.
FATHOM_DEVICE void rotate(float& a, float& b, Turn t) {
  const float x = add(multiply(a, t.cosine), -multiply(b, t.sine));
  const float y = add(multiply(a, t.sine), multiply(b, t.cosine));
  a = round_bf16(x), b = round_bf16(y);
}

}  // namespace fathom::ops::device
