#include <vector>

#include "ops/exact.h"
#include "ops/linear/linear.h"

namespace fathom::ops {

void linear_fp8_ref(const LinearFp8Args& a, const Launch&) {
  const int64_t depth = a.x.size[1], blocks = depth / 128;
  std::vector<double> x(static_cast<size_t>(depth));
  for (int64_t t = 0; t < a.x.size[0]; ++t) {
    for (int64_t i = 0; i < depth; ++i) x[static_cast<size_t>(i)] = to_float(a.x(t, i));
    for (int32_t p = 0; p < a.parts; ++p) {
      const auto& [w, y] = a.part[p];
      for (int64_t n = 0; n < w.codes.size[0]; ++n) {
        float sum = 0;
        for (int64_t b = 0; b < blocks; ++b) {
          double dot = 0;
          for (int64_t i = b * 128; i < b * 128 + 128; ++i) dot += x[static_cast<size_t>(i)] * double{to_float(w.codes(n, i))};
          sum += static_cast<float>(dot) * (to_float(a.x_scale(t, b)) * to_float(w.scale(n / 128, b)));
        }
        y(t, n) = to_bf16(sum);
      }
    }
  }
}

namespace {

float dot(View<const bf16, 1> x, View<const bf16, 1> w) {
  double sum = 0;
  for (int64_t i = 0; i < x.size[0]; ++i) sum += double{to_float(x.data[i])} * double{to_float(w.data[i])};
  return static_cast<float>(sum);
}

}  // namespace

void linear_bf16_ref(const LinearBf16Args& a, const Launch&) {
  for (int64_t t = 0; t < a.x.size[0]; ++t) {
    for (int64_t n = 0; n < a.w.size[0]; ++n) {
      const float product = round_bf16(dot(a.x[t], a.w[n]));
      a.y(t, n) = to_bf16(product * a.factor);
    }
  }
}

void linear_f32_ref(const LinearF32Args& a, const Launch&) {
  for (int64_t t = 0; t < a.x.size[0]; ++t)
    for (int32_t p = 0; p < a.parts; ++p)
      for (int64_t n = 0; n < a.part[p].w.size[0]; ++n) a.part[p].y(t, n) = dot(a.x[t], a.part[p].w[n]);
}

}  // namespace fathom::ops
