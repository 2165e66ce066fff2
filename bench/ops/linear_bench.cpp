// Linear layers: the shapes of fairy and of V4-Flash, one token (decode) and many (prefill).
#include "inputs.h"
#include "ops/linear/linear.h"
#include "ops/output_project/output_project.h"

namespace fathom::bench {
namespace {

void fp8(benchmark::State& state) {
  const int64_t rows = state.range(0), depth = state.range(1), tokens = state.range(2);
  Inputs in;
  const auto x = in.codes(tokens * depth), w = in.codes(rows * depth);
  const auto x_scale = in.scales(tokens * depth / 128), w_scale = in.scales(rows / 128 * depth / 128);
  std::vector<bf16> y(static_cast<size_t>(tokens * rows));
  ops::LinearFp8Args a;
  a.x = View<const e4m3, 2>(x.data(), tokens, depth);
  a.x_scale = View<const e8m0, 2>(x_scale.data(), tokens, depth / 128);
  a.parts = 1;
  a.part[0].w = {View<const e4m3, 2>(w.data(), rows, depth),
                 View<const e8m0, 2>(w_scale.data(), rows / 128, depth / 128)};
  a.part[0].y = View<bf16, 2>(y.data(), tokens, rows);
  measure(state, ops::linear_fp8_variants(), a, static_cast<double>(tokens * rows * depth),
          static_cast<double>(rows * depth + tokens * (depth + 2 * rows)));
}

void f32(benchmark::State& state) {
  const int64_t rows = state.range(0), depth = state.range(1), tokens = state.range(2);
  Inputs in;
  const auto x = in.bf16s(tokens * depth), w = in.bf16s(rows * depth);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  ops::LinearF32Args a;
  a.x = View<const bf16, 2>(x.data(), tokens, depth);
  a.parts = 1;
  a.part[0].w = View<const bf16, 2>(w.data(), rows, depth);
  a.part[0].y = View<float, 2>(y.data(), tokens, rows);
  measure(state, ops::linear_f32_variants(), a, static_cast<double>(tokens * rows * depth),
          static_cast<double>(2 * rows * depth + tokens * (2 * depth + 4 * rows)));
}

void output_project(benchmark::State& state, const Dims& m) {
  const int64_t tokens = state.range(0), width = m.heads * 512, rows = m.groups * m.o_rank, depth = width / m.groups;
  Inputs in;
  const auto o = in.bf16s(tokens * width);
  const auto w = in.codes(rows * depth);
  const auto scale = in.scales(rows / 128 * depth / 128);
  std::vector<bf16> z(static_cast<size_t>(tokens * rows));
  std::vector<e4m3> codes(z.size());
  std::vector<e8m0> z_scale(z.size() / 128);
  ops::OutputProjectArgs a;
  a.o = View<const bf16, 3>(o.data(), tokens, m.heads, 512);
  a.groups = static_cast<int32_t>(m.groups);
  a.wo_a = {View<const e4m3, 2>(w.data(), rows, depth), View<const e8m0, 2>(scale.data(), rows / 128, depth / 128)};
  a.z = View<bf16, 2>(z.data(), tokens, rows);
  a.z_codes = View<e4m3, 2>(codes.data(), tokens, rows);
  a.z_scale = View<e8m0, 2>(z_scale.data(), tokens, rows / 128);
  measure(state, ops::output_project_variants(), a, static_cast<double>(tokens * rows * depth),
          static_cast<double>(rows * depth + tokens * (2 * width + 3 * rows)));
}

// wq_a with wkv, wq_b, wo_b of fairy; wq_a, wq_b, wo_b of V4-Flash.
BENCHMARK(fp8)
    ->ArgNames({"N", "K", "T"})
    ->ArgsProduct({{640}, {256}, {1, 6, 512}})
    ->ArgsProduct({{2048}, {128}, {1, 6, 512}})
    ->ArgsProduct({{256}, {256}, {1, 6, 512}})
    ->ArgsProduct({{1024}, {4096}, {1, 6, 96}})
    ->ArgsProduct({{32768}, {1024}, {1, 6}})
    ->ArgsProduct({{4096}, {8192}, {1, 6}})
    ->UseRealTime();
// Compressor of ratio 4 with its indexer, head.
BENCHMARK(f32)
    ->ArgNames({"N", "K", "T"})
    ->ArgsProduct({{2560}, {256}, {1, 6, 512}})
    ->ArgsProduct({{2048}, {256}, {1, 6}})
    ->ArgsProduct({{2560}, {4096}, {1, 6}})
    ->UseRealTime();
BENCHMARK_CAPTURE(output_project, fairy, kFairy)->ArgName("T")->Arg(1)->Arg(6)->Arg(512)->UseRealTime();
BENCHMARK_CAPTURE(output_project, flash, kFlash)->ArgName("T")->Arg(1)->Arg(6)->UseRealTime();

}  // namespace
}  // namespace fathom::bench
