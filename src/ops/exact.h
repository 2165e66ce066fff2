// Scalar building blocks of the reference variants: sums in double, rounded once to fp32, then the rounding points of
// the specification. Slow on purpose and written to be read next to tests/reference/ref.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/small_floats.h"
#include "base/view.h"

namespace fathom::ops::exact {

inline float mean_square(std::span<const float> x) {
  double sum = 0;
  for (float v : x) sum += double{v} * double{v};
  return static_cast<float>(sum / static_cast<double>(x.size()));
}

/// exp and log1p of an fp32 value, rounded once: the same bits with any math library.
inline float exp(float x) {
  return static_cast<float>(std::exp(static_cast<double>(x)));
}
inline float log1p(float x) {
  return static_cast<float>(std::log1p(static_cast<double>(x)));
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + exp(-x));
}
inline float silu(float x) {
  return x / (1.0f + exp(-x));
}
/// Identity above 20, as the official code has it.
inline float softplus(float x) {
  return x > 20.0f ? x : log1p(exp(std::min(x, 20.0f)));
}

/// A row of bf16 values widened to fp32.
inline std::vector<float> widen(View<const bf16, 1> row) {
  std::vector<float> out(static_cast<size_t>(row.size[0]));
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(row.data[i]);
  return out;
}

/// RMSNorm in place: x * rsqrt(mean(x^2) + eps) * w, rounded to bf16 once.
inline void rmsnorm(std::span<float> x, View<const bf16, 1> weight, float eps) {
  const float factor = 1.0f / std::sqrt(mean_square(x) + eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] = round_bf16(x[i] * factor * to_float(weight.data[i]));
}

/// Rotates the interleaved pairs of x[0..64) by position * freq; bf16 result. The angle is the fp32 product, its sine
/// and cosine are taken with full range reduction.
inline void rope(std::span<float> x, int32_t position, View<const float, 1> freq, bool inverse = false) {
  for (int i = 0; i < freq.size[0]; ++i) {
    const double angle = static_cast<float>(position) * freq.data[i];
    const float c = static_cast<float>(std::cos(angle));
    const float s = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = round_bf16(a * c - b * s);
    x[2 * i + 1] = round_bf16(a * s + b * c);
  }
}

/// Quantises one group to e4m3 codes and returns its scale.
inline e8m0 quantize_group(std::span<const float> x, e4m3* codes) {
  float amax = 0;
  for (float v : x) amax = std::max(amax, std::abs(v));
  const e8m0 scale = e4m3_scale(amax);
  const float inverse = reciprocal(scale);
  for (size_t i = 0; i < x.size(); ++i) codes[i] = to_e4m3(x[i] * inverse);
  return scale;
}

/// act_quant of a row per 128 channels.
inline void act_quant(std::span<const float> x, e4m3* codes, e8m0* scale) {
  for (size_t at = 0; at < x.size(); at += 128)
    scale[at / 128] = quantize_group(x.subspan(at, std::min<size_t>(128, x.size() - at)), codes + at);
}

/// Walsh-Hadamard transform in Sylvester order times n^-0.5, bf16 result. Sums are exact in double.
inline void hadamard(std::span<float> x) {
  const size_t n = x.size();
  std::vector<double> v(x.begin(), x.end());
  for (size_t half = 1; half < n; half *= 2) {
    for (size_t i = 0; i < n; i += 2 * half) {
      for (size_t k = i; k < i + half; ++k) {
        const double a = v[k], b = v[k + half];
        v[k] = a + b;
        v[k + half] = a - b;
      }
    }
  }
  const float factor = static_cast<float>(std::pow(static_cast<double>(n), -0.5));
  for (size_t i = 0; i < n; ++i) x[i] = round_bf16(static_cast<float>(v[i]) * factor);
}

/// One group of 32 channels to e2m1 codes (low nibble = even channel); returns the scale.
inline e8m0 fp4_group(std::span<const float> x, uint8_t* codes) {
  float amax = 0;
  for (float v : x) amax = std::max(amax, std::abs(v));
  const e8m0 scale = e2m1_scale(amax);
  const float inverse = reciprocal(scale);
  for (size_t i = 0; i < x.size(); i += 2)
    codes[i / 2] = static_cast<uint8_t>(to_e2m1(x[i] * inverse) | to_e2m1(x[i + 1] * inverse) << 4);
  return scale;
}

/// Mixes of the residual streams: fn . f * rsqrt(mean(f^2) + eps), f = the concatenated streams.
inline void stream_mixes(std::span<const float> f, View<const float, 2> fn, float eps, float* out) {
  const float factor = 1.0f / std::sqrt(mean_square(f) + eps);
  for (int64_t m = 0; m < fn.size[0]; ++m) {
    double sum = 0;
    for (size_t i = 0; i < f.size(); ++i) sum += double{f[i]} * double{fn(m, i)};
    out[m] = static_cast<float>(sum) * factor;
  }
}

/// bf(sum_j pre[j] * X[j]) with the fp32 sum taken in stream order.
inline std::vector<float> mix_streams(std::span<const float> f, const float* pre, int64_t streams) {
  const size_t d = f.size() / static_cast<size_t>(streams);
  std::vector<float> y(d);
  for (size_t i = 0; i < d; ++i) {
    float sum = pre[0] * f[i];
    for (int64_t j = 1; j < streams; ++j) sum += pre[j] * f[static_cast<size_t>(j) * d + i];
    y[i] = round_bf16(sum);
  }
  return y;
}

}  // namespace fathom::ops::exact
