// Router, experts with the shared expert, half-block boundary.
#include "inputs.h"
#include "ops/experts/experts.h"
#include "ops/residual_mix/residual_mix.h"
#include "ops/route/route.h"

namespace fathom::bench {
namespace {

/// MXFP4 weights of all experts.
struct Mxfp4 {
  std::vector<uint8_t> codes, scale;
  ops::ExpertWeight weight;

  Mxfp4(Inputs& in, int64_t experts, int64_t rows, int64_t columns)
      : codes(in.bytes(experts * rows * columns / 2)), scale(in.bytes(experts * rows * columns / 32, 116, 120)) {
    weight.codes = reinterpret_cast<const std::byte*>(codes.data());
    weight.scale = reinterpret_cast<const std::byte*>(scale.data());
    weight.codes_stride = rows * columns / 2, weight.scale_stride = rows * columns / 32;
    weight.rows = rows, weight.columns = columns;
  }
};

struct Fp8 {
  std::vector<e4m3> codes;
  std::vector<e8m0> scale;
  int64_t rows, columns;

  Fp8(Inputs& in, int64_t n, int64_t k)
      : codes(in.codes(n * k)), scale(in.scales(n / 128 * k / 128)), rows(n), columns(k) {}
  ops::Fp8Weight weight() const {
    return {View<const e4m3, 2>(codes.data(), rows, columns),
            View<const e8m0, 2>(scale.data(), rows / 128, columns / 128)};
  }
};

/// Every token asks for topk different experts, spread evenly.
void experts(benchmark::State& state, const Dims& m) {
  const int64_t tokens = state.range(0), count = std::min<int64_t>(m.experts, 64);  // 64 experts of V4-Flash: 800 MB
  Inputs in;
  const Mxfp4 w1(in, count, m.inter, m.d), w3(in, count, m.inter, m.d), w2(in, count, m.d, m.inter);
  const Fp8 s1(in, m.inter, m.d), s3(in, m.inter, m.d), s2(in, m.d, m.inter);
  const auto x = in.codes(tokens * m.d);
  const auto x_scale = in.scales(tokens * m.d / 128);
  std::vector<int32_t> expert;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t first = in.below(count);
    std::vector<int32_t> mine;
    for (int64_t i = 0; i < m.topk; ++i) mine.push_back(static_cast<int32_t>((first + i * 5) % count));
    std::sort(mine.begin(), mine.end());
    expert.insert(expert.end(), mine.begin(), mine.end());
  }
  const std::vector<float> weight(expert.size(), 0.25f);
  std::vector<bf16> y(static_cast<size_t>(tokens * m.d));
  ops::ExpertsArgs a;
  a.x = View<const e4m3, 2>(x.data(), tokens, m.d);
  a.x_scale = View<const e8m0, 2>(x_scale.data(), tokens, m.d / 128);
  a.expert = View<const int32_t, 2>(expert.data(), tokens, m.topk);
  a.weight = View<const float, 2>(weight.data(), tokens, m.topk);
  a.experts = static_cast<int32_t>(count);
  a.w1 = w1.weight, a.w3 = w3.weight, a.w2 = w2.weight;
  a.shared_w1 = s1.weight(), a.shared_w3 = s3.weight(), a.shared_w2 = s2.weight();
  a.y = View<bf16, 2>(y.data(), tokens, m.d);
  std::vector<bool> used(static_cast<size_t>(count));
  for (int32_t e : expert) used[static_cast<size_t>(e)] = true;
  const auto distinct = static_cast<double>(std::count(used.begin(), used.end(), true));
  const double matrix = 3.0 * static_cast<double>(m.d * m.inter);
  measure(state, ops::experts_variants(), a, static_cast<double>(tokens * (m.topk + 1)) * matrix,
          matrix * (distinct * (0.5 + 1.0 / 32) + 1) + static_cast<double>(tokens * m.d * 3));
}

void route(benchmark::State& state, const Dims& m) {
  const int64_t tokens = state.range(0);
  Inputs in;
  const auto x = in.bf16s(tokens * m.d), gate = in.bf16s(m.experts * m.d, 0.05f);
  const auto bias = in.fp32(m.experts, 0.1f);
  std::vector<float> scores(static_cast<size_t>(tokens * m.experts)), weight(static_cast<size_t>(tokens * m.topk));
  std::vector<int32_t> expert(weight.size());
  ops::RouteArgs a;
  a.x = View<const bf16, 2>(x.data(), tokens, m.d);
  a.gate = View<const bf16, 2>(gate.data(), m.experts, m.d);
  a.bias = View<const float, 1>(bias.data(), m.experts);
  a.scores = View<float, 2>(scores.data(), tokens, m.experts);
  a.expert = View<int32_t, 2>(expert.data(), tokens, m.topk);
  a.weight = View<float, 2>(weight.data(), tokens, m.topk);
  measure(state, ops::route_variants(), a, static_cast<double>(tokens * m.experts * m.d),
          static_cast<double>(2 * (m.experts + tokens) * m.d));
}

void residual_mix(benchmark::State& state, const Dims& m) {
  const int64_t tokens = state.range(0);
  Inputs in;
  auto streams = in.bf16s(tokens * 4 * m.d);
  const auto y = in.bf16s(tokens * m.d), norm = in.bf16s(m.d);
  const auto fn = in.fp32(24 * 4 * m.d, 0.01f), scale = in.fp32(3), base = in.fp32(24);
  const auto post = in.fp32(tokens * 4, 0.5f), comb = in.fp32(tokens * 16, 0.2f);
  std::vector<float> next_post(post.size()), next_comb(comb.size());
  std::vector<bf16> x(static_cast<size_t>(tokens * m.d));
  std::vector<e4m3> codes(x.size());
  std::vector<e8m0> x_scale(x.size() / 128);
  ops::ResidualMixArgs a;
  a.streams = View<bf16, 3>(streams.data(), tokens, 4, m.d);
  a.y = View<const bf16, 2>(y.data(), tokens, m.d);
  a.post = View<const float, 2>(post.data(), tokens, 4);
  a.comb = View<const float, 3>(comb.data(), tokens, 4, 4);
  a.fn = View<const float, 2>(fn.data(), 24, 4 * m.d);
  a.scale = View<const float, 1>(scale.data(), 3);
  a.base = View<const float, 1>(base.data(), 24);
  a.norm = View<const bf16, 1>(norm.data(), m.d);
  a.next_post = View<float, 2>(next_post.data(), tokens, 4);
  a.next_comb = View<float, 3>(next_comb.data(), tokens, 4, 4);
  a.x = View<bf16, 2>(x.data(), tokens, m.d);
  a.x_codes = View<e4m3, 2>(codes.data(), tokens, m.d);
  a.x_scale = View<e8m0, 2>(x_scale.data(), tokens, m.d / 128);
  measure(state, ops::residual_mix_variants(), a, static_cast<double>(tokens * 40 * 4 * m.d),
          static_cast<double>(24 * 16 * m.d + tokens * m.d * 21));
}

BENCHMARK_CAPTURE(experts, fairy, kFairy)->ArgName("T")->Arg(1)->Arg(6)->Arg(512)->UseRealTime();
BENCHMARK_CAPTURE(experts, flash, kFlash)->ArgName("T")->Arg(1)->Arg(6)->UseRealTime();
BENCHMARK_CAPTURE(route, fairy, kFairy)->ArgName("T")->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK_CAPTURE(route, flash, kFlash)->ArgName("T")->Arg(1)->Arg(6)->UseRealTime();
BENCHMARK_CAPTURE(residual_mix, fairy, kFairy)->ArgName("T")->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK_CAPTURE(residual_mix, flash, kFlash)->ArgName("T")->Arg(1)->Arg(6)->UseRealTime();

}  // namespace
}  // namespace fathom::bench
