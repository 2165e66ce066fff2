#include <utility>

#include "base/threads.h"
#include "ops/exact.h"
#include "ops/experts/experts.h"
#include "ops/fp4_order.h"

namespace fathom::ops {
namespace {

/// A quantised activation row: values on the e4m3 grid and one scale for each 128.
struct Row {
  std::vector<double> value;
  std::vector<float> scale;
};

Row load(const e4m3* codes, const e8m0* scale, int64_t n) {
  Row row{std::vector<double>(static_cast<size_t>(n)), std::vector<float>(static_cast<size_t>((n + 127) / 128))};
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
  if (w.order != CodeOrder::checkpoint) {
    uint32_t word = 0;
    for (int k = 0; k < 4; ++k) word |= static_cast<uint32_t>(at(i / 8 * 4 + k)) << 8 * k;
    if (w.order == CodeOrder::bytes) {
      const uint32_t byte = fp4_bytes(word, static_cast<int>(i % 8 / 4)) >> 8 * (i % 4);
      return e2m1_to_float(static_cast<uint8_t>((byte >> 1 & 7) | (byte >> 7 & 1) << 3));
    }
    const uint32_t fields = fp4_fields(word, static_cast<int>(i % 4)) >> (i % 8 < 4 ? 0 : 16);
    return e2m1_to_float(static_cast<uint8_t>((fields >> 6 & 7) | (fields >> 15 & 1) << 3));
  }
  return e2m1_to_float(at(i / 2) >> (i % 2 * 4) & 15);
}

float weight_scale(const ExpertWeight& w, const std::byte* scale, int64_t e, int64_t n, int64_t block) {
  const auto at = [&](int64_t row) { return static_cast<uint8_t>(scale[row * w.scale_columns() + block]); };
  switch (w.format) {
    case ExpertFormat::mxfp4:
      return to_float(e8m0{at(n)});
    case ExpertFormat::nvfp4:
      return to_float(e4m3{at(n)}) * w.global_scale[e];
    case ExpertFormat::fp8:
      return to_float(e8m0{at(n / 128)});
  }
  return 0;
}

/// One expert's matrix with its codes widened, to be used for many rows.
struct Matrix {
  int64_t rows, columns, block;
  std::vector<double> code;   // [rows, columns]
  std::vector<float> factor;  // [rows, columns / block]

  Matrix(const ExpertWeight& w, int64_t e) : rows(w.rows), columns(w.columns) {
    block = w.format == ExpertFormat::fp8 ? 128 : w.format == ExpertFormat::mxfp4 ? 32 : 16;
    const std::byte *codes = w.codes + e * w.codes_stride, *scale = w.scale + e * w.scale_stride;
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t i = 0; i < columns; ++i) code.push_back(weight_code(w, codes, n, i));
      for (int64_t b = 0; b < columns / block; ++b) factor.push_back(weight_scale(w, scale, e, n, b));
    }
  }

  /// y[rows] = this . x, rounded to bf16: block sums in double, scaled and added in fp32.
  std::vector<float> multiply(const Row& x) const {
    std::vector<float> y(static_cast<size_t>(rows));
    const int64_t blocks = columns / block;
    for (int64_t n = 0; n < rows; ++n) {
      float sum = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        double dot = 0;
        for (int64_t i = b * block; i < (b + 1) * block; ++i)
          dot += x.value[static_cast<size_t>(i)] * code[static_cast<size_t>(n * columns + i)];
        sum += static_cast<float>(dot) *
               (x.scale[static_cast<size_t>(b * block / 128)] * factor[static_cast<size_t>(n * blocks + b)]);
      }
      y[static_cast<size_t>(n)] = round_bf16(sum);
    }
    return y;
  }
};

ExpertWeight as_expert(const Fp8Weight& w) {
  return {ExpertFormat::fp8,
          reinterpret_cast<const std::byte*>(w.codes.data),
          reinterpret_cast<const std::byte*>(w.scale.data),
          nullptr,
          0,
          0,
          w.codes.size[0],
          w.codes.size[1]};
}

/// The three matrices of one expert.
struct Expert {
  Matrix w1, w3, w2;

  std::vector<float> operator()(const Row& x, float limit, const float* weight) const {
    const auto gate = w1.multiply(x), up = w3.multiply(x);
    std::vector<float> h(gate.size());
    for (size_t i = 0; i < h.size(); ++i) {
      const float a = std::min(gate[i], limit), b = std::clamp(up[i], -limit, limit);
      const float product = exact::silu(a) * b;
      h[i] = round_bf16(weight ? *weight * product : product);
    }
    return w2.multiply(quantize(h));
  }
};

}  // namespace

void experts_ref(const ExpertsArgs& a, const Launch&) {
  const int64_t tokens = a.x.size[0], d = a.x.size[1];
  std::vector<Row> x;
  for (int64_t t = 0; t < tokens; ++t) x.push_back(load(&a.x(t, 0), &a.x_scale(t, 0), d));
  std::vector<float> y(static_cast<size_t>(tokens * d), 0.0f);
  const auto add = [&](int64_t t, const std::vector<float>& part) {
    for (int64_t i = 0; i < d; ++i) y[static_cast<size_t>(t * d + i)] += part[static_cast<size_t>(i)];
  };
  // Ascending expert ids, so that each token's sum has the order of the specification.
  for (int64_t e = 0; e < a.experts; ++e) {
    std::vector<std::pair<int64_t, float>> users;  // token, weight
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < a.expert.size[1]; ++i)
        if (a.expert(t, i) == a.first_expert + e) users.emplace_back(t, a.weight(t, i));
    if (users.empty()) continue;
    const Expert expert{Matrix(a.w1, e), Matrix(a.w3, e), Matrix(a.w2, e)};
    parallel_for(static_cast<int64_t>(users.size()), 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto& [t, weight] = users[static_cast<size_t>(i)];
        add(t, expert(x[static_cast<size_t>(t)], a.limit, &weight));
      }
    });
  }
  if (a.shared_w1.codes.data) {
    const Expert shared{Matrix(as_expert(a.shared_w1), 0), Matrix(as_expert(a.shared_w3), 0),
                        Matrix(as_expert(a.shared_w2), 0)};
    parallel_for(tokens, 4, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) add(t, shared(x[static_cast<size_t>(t)], a.limit, nullptr));
    });
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < d; ++i) {
      const float v = y[static_cast<size_t>(t * d + i)];
      if (a.sum.data)
        a.sum(t, i) = v;
      else
        a.y(t, i) = to_bf16(v);
    }
  }
}

}  // namespace fathom::ops
