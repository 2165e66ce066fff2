#include <vector>

#include "base/threads.h"
#include "ops/exact.h"
#include "ops/linear/linear.h"

namespace fathom::ops {
namespace {

template <typename T>
std::vector<double> widen(View<const T, 2> m) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(m.count()));
  for (int64_t r = 0; r < m.size[0]; ++r)
    for (int64_t c = 0; c < m.size[1]; ++c) out.push_back(to_float(m(r, c)));
  return out;
}

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Calls body(n, row) with each weight row widened once, so that it serves all tokens.
template <typename T, typename Body>
void for_rows(View<const T, 2> w, const Body& body) {
  parallel_for(w.size[0], 16, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) body(n, widen(w.rows(n, 1)).data());
  });
}

}  // namespace

void linear_fp8_ref(const LinearFp8Args& a, const Launch&) {
  const int64_t depth = a.x.size[1];
  const auto x = widen(a.x);
  for (int32_t p = 0; p < a.parts; ++p) {
    const auto& part = a.part[p];
    for_rows(part.w.codes, [&](int64_t n, const double* w) {
      for (int64_t t = 0; t < a.x.size[0]; ++t) {
        float sum = 0;
        for (int64_t b = 0; b < depth / 128; ++b) {
          const double block = dot(&x[static_cast<size_t>(t * depth + b * 128)], w + b * 128, 128);
          sum += static_cast<float>(block) * (to_float(a.x_scale(t, b)) * to_float(part.w.scale(n / 128, b)));
        }
        part.y(t, n) = to_bf16(sum);
      }
    });
  }
}

void linear_bf16_ref(const LinearBf16Args& a, const Launch&) {
  const int64_t depth = a.x.size[1];
  const auto x = widen(a.x);
  for_rows(a.w, [&](int64_t n, const double* w) {
    for (int64_t t = 0; t < a.x.size[0]; ++t) {
      const float product = round_bf16(static_cast<float>(dot(&x[static_cast<size_t>(t * depth)], w, depth)));
      a.y(t, n) = to_bf16(product * a.factor);
    }
  });
}

void linear_f32_ref(const LinearF32Args& a, const Launch&) {
  const int64_t depth = a.x.size[1];
  const auto x = widen(a.x);
  for (int32_t p = 0; p < a.parts; ++p) {
    for_rows(a.part[p].w, [&](int64_t n, const double* w) {
      for (int64_t t = 0; t < a.x.size[0]; ++t)
        a.part[p].y(t, n) = static_cast<float>(dot(&x[static_cast<size_t>(t * depth)], w, depth));
    });
  }
}

}  // namespace fathom::ops
