#include "base/threads.h"
#include "ops/exact.h"
#include "ops/residual_mix/residual_mix.h"

namespace fathom::ops {
namespace {

constexpr int kN = kStreams;

/// Rows soft-maxed, then columns and rows normalised in turn; columns are last.
void sinkhorn(float (&c)[kN][kN], int iterations, float eps) {
  for (auto& row : c) {
    const float top = *std::max_element(row, row + kN);
    double sum = 0;
    for (float& v : row) v = exact::exp(v - top), sum += v;
    for (float& v : row) v = v / static_cast<float>(sum) + eps;
  }
  const auto columns = [&] {
    for (int k = 0; k < kN; ++k) {
      const float sum = c[0][k] + c[1][k] + c[2][k] + c[3][k] + eps;
      for (auto& row : c) row[k] /= sum;
    }
  };
  columns();
  for (int i = 1; i < iterations; ++i) {
    for (auto& row : c) {
      const float sum = row[0] + row[1] + row[2] + row[3] + eps;
      for (float& v : row) v /= sum;
    }
    columns();
  }
}

std::vector<float> load_streams(const ResidualMixArgs& a, int64_t t) {
  const int64_t d = a.streams.size[2];
  std::vector<float> f(static_cast<size_t>(kN * d));
  for (int k = 0; k < kN; ++k)
    for (int64_t i = 0; i < d; ++i) f[static_cast<size_t>(k * d + i)] = to_float(a.streams(t, k, i));
  return f;
}

void post_part(const ResidualMixArgs& a, int64_t t) {
  const auto f = load_streams(a, t);
  const int64_t d = a.streams.size[2];
  for (int k = 0; k < kN; ++k) {
    for (int64_t i = 0; i < d; ++i) {
      double sum = 0;
      for (int j = 0; j < kN; ++j) sum += double{a.comb(t, j, k)} * double{f[static_cast<size_t>(j * d + i)]};
      a.streams(t, k, i) = to_bf16(a.post(t, k) * to_float(a.y(t, i)) + static_cast<float>(sum));
    }
  }
}

void pre_part(const ResidualMixArgs& a, int64_t t) {
  const auto f = load_streams(a, t);
  float m[kMixes], pre[kN], comb[kN][kN];
  exact::stream_mixes(f, a.fn, a.rms_eps, m);
  for (int j = 0; j < kN; ++j) {
    pre[j] = exact::sigmoid(m[j] * a.scale(0) + a.base(j)) + a.hc_eps;
    a.next_post(t, j) = 2.0f * exact::sigmoid(m[kN + j] * a.scale(1) + a.base(kN + j));
    for (int k = 0; k < kN; ++k) comb[j][k] = m[2 * kN + kN * j + k] * a.scale(2) + a.base(2 * kN + kN * j + k);
  }
  sinkhorn(comb, a.sinkhorn_iterations, a.hc_eps);
  for (int j = 0; j < kN; ++j)
    for (int k = 0; k < kN; ++k) a.next_comb(t, j, k) = comb[j][k];

  auto y = exact::mix_streams(f, pre, kN);
  exact::rmsnorm(y, a.norm, a.rms_eps);
  for (size_t i = 0; i < y.size(); ++i) a.x(t, i) = to_bf16(y[i]);
  exact::act_quant(y, &a.x_codes(t, 0), &a.x_scale(t, 0));
}

}  // namespace

void residual_mix_ref(const ResidualMixArgs& a, const Launch&) {
  parallel_for(a.streams.size[0], 1, [&](int64_t t, int64_t) {
    if (a.y.data) post_part(a, t);
    if (a.fn.data) pre_part(a, t);
  });
}

}  // namespace fathom::ops
