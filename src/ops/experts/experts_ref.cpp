#include <cstring>

#include "ops/exact.h"
#include "ops/experts/experts.h"

namespace fathom::ops {
namespace {

/// A quantised activation row: values on the e4m3 grid and one scale for each 128.
struct Row {
  std::vector<float> value, scale;
};

Row load(const e4m3* codes, const e8m0* scale, int64_t n) {
  Row row{std::vector<float>(static_cast<size_t>(n)), std::vector<float>(static_cast<size_t>((n + 127) / 128))};
  for (int64_t i = 0; i < n; ++i) row.value[static_cast<size_t>(i)] = to_float(codes[i]);
  for (size_t b = 0; b < row.scale.size(); ++b) row.scale[b] = to_float(scale[b]);
  return row;
}

Row quantize(const std::vector<float>& x) {
  std::vector<e4m3> codes(x.size());
  std::vector<e8m0> scale((x.size() + 127) / 128);
  exact::act_quant(x, codes.data(), scale.data());
  return load(codes.data(), scale.data(), static_cast<int64_t>(x.size()));
}

float weight_code(const ExpertWeight& w, const std::byte* codes, int64_t n, int64_t i) {
  const auto at = [&](int64_t offset) { return static_cast<uint8_t>(codes[n * w.code_row_bytes() + offset]); };
  if (w.format == ExpertFormat::fp8) return to_float(e4m3{at(i)});
  return e2m1_to_float(at(i / 2) >> (i % 2 * 4) & 15);
}

float weight_scale(const ExpertWeight& w, const std::byte* scale, int64_t e, int64_t n, int64_t block) {
  const auto at = [&](int64_t row) { return static_cast<uint8_t>(scale[row * w.scale_columns() + block]); };
  switch (w.format) {
    case ExpertFormat::mxfp4: return to_float(e8m0{at(n)});
    case ExpertFormat::nvfp4: return to_float(e4m3{at(n)}) * w.global_scale[e];
    case ExpertFormat::fp8: return to_float(e8m0{at(n / 128)});
  }
  return 0;
}

/// y[N] = w x of expert e, rounded to bf16: block sums in double, scaled and added in fp32.
std::vector<float> multiply(const ExpertWeight& w, int64_t e, const Row& x) {
  const std::byte *codes = w.codes + e * w.codes_stride, *scale = w.scale + e * w.scale_stride;
  const int64_t block = w.format == ExpertFormat::fp8 ? 128 : w.format == ExpertFormat::mxfp4 ? 32 : 16;
  std::vector<float> y(static_cast<size_t>(w.rows));
  for (int64_t n = 0; n < w.rows; ++n) {
    float sum = 0;
    for (int64_t b = 0; b < w.columns / block; ++b) {
      double dot = 0;
      for (int64_t i = b * block; i < (b + 1) * block; ++i)
        dot += double{x.value[static_cast<size_t>(i)]} * double{weight_code(w, codes, n, i)};
      sum += static_cast<float>(dot) * (x.scale[static_cast<size_t>(b * block / 128)] * weight_scale(w, scale, e, n, b));
    }
    y[static_cast<size_t>(n)] = round_bf16(sum);
  }
  return y;
}

ExpertWeight as_expert(const Fp8Weight& w) {
  return {ExpertFormat::fp8, reinterpret_cast<const std::byte*>(w.codes.data),
          reinterpret_cast<const std::byte*>(w.scale.data), nullptr, 0, 0, w.codes.size[0], w.codes.size[1]};
}

std::vector<float> expert(const ExpertWeight& w1, const ExpertWeight& w3, const ExpertWeight& w2, int64_t e, const Row& x,
                          float limit, const float* weight) {
  const auto gate = multiply(w1, e, x), up = multiply(w3, e, x);
  std::vector<float> h(gate.size());
  for (size_t i = 0; i < h.size(); ++i) {
    const float a = std::min(gate[i], limit), b = std::clamp(up[i], -limit, limit);
    const float product = exact::silu(a) * b;
    h[i] = round_bf16(weight ? *weight * product : product);
  }
  return multiply(w2, e, quantize(h));
}

}  // namespace

void experts_ref(const ExpertsArgs& a, const Launch&) {
  const int64_t d = a.x.size[1];
  for (int64_t t = 0; t < a.x.size[0]; ++t) {
    const Row x = load(&a.x(t, 0), &a.x_scale(t, 0), d);
    std::vector<float> y(static_cast<size_t>(d), 0.0f);
    const auto add = [&](const std::vector<float>& part) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += part[i];
    };
    for (int64_t i = 0; i < a.expert.size[1]; ++i)
      add(expert(a.w1, a.w3, a.w2, a.expert(t, i), x, a.limit, &a.weight(t, i)));
    if (a.shared_w1.codes.data)
      add(expert(as_expert(a.shared_w1), as_expert(a.shared_w3), as_expert(a.shared_w2), 0, x, a.limit, nullptr));
    for (int64_t i = 0; i < d; ++i) a.y(t, i) = to_bf16(y[static_cast<size_t>(i)]);
  }
}

}  // namespace fathom::ops
