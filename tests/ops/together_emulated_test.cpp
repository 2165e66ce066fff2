// Products that share a launch, run on the host by the emulator and compared with each alone, bit for bit.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "lab/check.h"
#include "ops/gpu_emulator.h"
#include "ops/half_end_problem.h"
#include "ops/linear/stream_kernel.cuh"
#include "ops/together/outputs_kernel.cuh"
#include "ops/together/products_kernel.cuh"
#include "ops/together/queries_kernel.cuh"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&);
void linear_fp8_ref(const LinearFp8Args& a, const Launch&);

namespace {

using gemm::Math;

constexpr DeviceInfo kHopper{Backend::cuda, 90, 132, 232448, int64_t{50} << 20};

/// Memory of all operands; outputs begin as a pattern.
struct Problem {
  static constexpr int64_t kDepth = 2048, kRows = 512;
  int64_t tokens;
  std::vector<e4m3> x8, w8;
  std::vector<e8m0> x_scale, w_scale;
  std::vector<bf16> x16, w16;
  std::vector<bf16> latent, weight;
  std::vector<float> projected;
  InputProductsArgs a;

  Problem(int64_t t, std::vector<int64_t> latents, std::vector<int64_t> compressor, int64_t weights, unsigned seed)
      : tokens(t) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill8 = [&](auto& v, int64_t n) {
      for (int64_t i = 0; i < n; ++i) v.push_back(to_e4m3(normal(random) * 20));
    };
    const auto fill16 = [&](auto& v, int64_t n) {
      for (int64_t i = 0; i < n; ++i) v.push_back(to_bf16(normal(random)));
    };
    fill8(x8, t * kDepth), fill8(w8, kRows * kDepth), fill16(x16, t * kDepth), fill16(w16, kRows * kDepth);
    for (int64_t i = 0; i < t * kDepth / 128; ++i) x_scale.push_back({static_cast<uint8_t>(120 + random() % 4)});
    for (int64_t i = 0; i < kRows * kDepth / 128; ++i) w_scale.push_back({static_cast<uint8_t>(115 + random() % 4)});
    forget();
    a.latents.x = View<const e4m3, 2>(x8.data(), t, kDepth);
    a.latents.x_scale = View<const e8m0, 2>(x_scale.data(), t, kDepth / 128);
    int64_t row = 0;
    for (const int64_t n : latents) {
      const Fp8Weight w{View<const e4m3, 2>(w8.data() + row * kDepth, n, kDepth),
                        View<const e8m0, 2>(w_scale.data() + row / 128, (n + 127) / 128, kDepth / 128)};
      a.latents.part[a.latents.parts++] = {w, View<bf16, 2>(latent.data() + row * t, t, n)};
      row += n;
    }
    a.compressor.x = a.weights.x = View<const bf16, 2>(x16.data(), t, kDepth);
    row = 0;
    for (const int64_t n : compressor) {
      a.compressor.part[a.compressor.parts++] = {View<const bf16, 2>(w16.data() + row * kDepth, n, kDepth),
                                                 View<float, 2>(projected.data() + row * t, t, n)};
      row += n;
    }
    if (weights == 0) return;
    a.weights.w = View<const bf16, 2>(w16.data() + row * kDepth, weights, kDepth);
    a.weights.factor = 0.03f, a.weights.y = View<bf16, 2>(weight.data(), t, weights);
  }
  void forget() {
    latent.assign(static_cast<size_t>(tokens * kRows), bf16{0x7FC1});
    weight.assign(static_cast<size_t>(tokens * kRows), bf16{0x7FC1});
    projected.assign(static_cast<size_t>(tokens * kRows), -77.0f);
  }
};

template <Math kMath>
void run_alone(gemm::Params p) {
  if (p.groups == 0) return;
  const gemm::Plan plan = gemm::make_plan(kMath, p.groups, p.units, p.tokens, kHopper, true);
  ASSERT_EQ(plan.tiles, 1);
  gemm::set_plan(p, plan);
  device::emulator::run_grid(plan.cluster, (p.groups + plan.group_warps - 1) / plan.group_warps, 1, plan.threads(),
                             plan.shared_bytes, plan.cluster > 1, 3,
                             [&](std::byte* shared) { gemm::wide_block<kMath, 1>(p, shared); });
}

/// As linear_fp8 does it with few rows, whatever the number of tokens.
void run_streamed(const LinearFp8Args& a) {
  stream::Work work = stream::pack(a);
  const stream::Plan plan =
      stream::make_plan(stream::Input::e4m3, work.row_tiles, work.params.units, work.params.tokens);
  ASSERT_EQ(plan.tiles, 1);
  stream::set_plan(work.params, plan);
  const stream::Maps maps = stream::describe_weights(work, device::emulated_map);
  device::emulator::run_grid(plan.cluster(), plan.token_tiles, plan.grid_tiles(), stream::threads(1), plan.shared_bytes,
                             plan.cluster() > 1, 3,
                             [&](std::byte* shared) { stream::linear_block<1>(work.params, maps, shared); });
}

void compare(Problem& p, bool exact) {
  if (exact)
    run_streamed(p.a.latents);
  else
    run_alone<Math::e4m3_wide>(gemm::pack(p.a.latents));
  run_alone<Math::bf16_wide>(gemm::pack(p.a.compressor));
  if (p.a.weights.w.data) run_alone<Math::bf16_wide>(gemm::pack(p.a.weights));
  const Problem alone = p;
  p.forget();
  const together::Products all = together::lay_out(p.a, kHopper, exact);
  ASSERT_TRUE(all.plan.fits);
  device::emulator::run_grid(together::kProductCluster, all.plan.rows[together::kProducts], 1,
                             32 * together::kProductWarps, all.plan.shared_bytes, true, 5,
                             [&](std::byte* shared) { together::products_block(all, shared); });
  const auto same = [](const auto& a, const auto& b) {
    return !std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0]));
  };
  EXPECT_TRUE(same(alone.latent, p.latent));
  EXPECT_TRUE(same(alone.weight, p.weight));
  EXPECT_TRUE(same(alone.projected, p.projected));
}

TEST(TogetherEmulated, ProductsOfOneInputHaveTheBitsOfEachAlone) {
  Problem ratio4(2, {128, 40}, {80, 80, 16, 16}, 24, 1);
  compare(ratio4, true), compare(ratio4, false);
  Problem ratio128(5, {128, 32}, {64, 64}, 0, 2);
  compare(ratio128, true), compare(ratio128, false);
}

#ifdef FATHOM_HAVE_CUDA
DeviceInfo few_processors() {  // 1408 rows of queries are then blocks of 8 warps without a cluster
  DeviceInfo device = kHopper;
  device.sm_count = 16;
  return device;
}
bool fits_beside(const LinearFp8Args& queries, const CompressArgs& compression) {
  return find_variant(query_products_variants(), "sm90")->can_run({queries, compression, {}}, few_processors());
}
void run_beside(const LinearFp8Args& queries, const CompressArgs& compression) {
  const together::QueryProducts all = together::lay_out({queries, compression, {}}, few_processors());
  device::emulator::run_grid(1, all.rows, 1, 32 * together::kProductWarps, all.shared_bytes, false, 5,
                             [&](std::byte* shared) {
                               if (compression.ratio == 4)
                                 together::queries_block<4>(all, shared);
                               else
                                 together::queries_block<128>(all, shared);
                             });
}

/// The lab judges the compressions of its random cases; the product has the bits of the product alone.
TEST(TogetherEmulated, QueriesBesideCompressions) {
  constexpr int64_t kQueries = 1408, kWidth = 128, kTokens = 3;
  Problem p(kTokens, {128}, {16}, 0, 4);
  std::vector<bf16> y(kQueries * kTokens);
  LinearFp8Args queries;
  queries.x = View<const e4m3, 2>(p.x8.data(), kTokens, kWidth);
  queries.x_scale = View<const e8m0, 2>(p.x_scale.data(), kTokens, int64_t{1});
  const Fp8Weight w{View<const e4m3, 2>(p.w8.data(), kQueries, kWidth),
                    View<const e8m0, 2>(p.w_scale.data(), kQueries / 128, int64_t{1})};
  queries.part[queries.parts++] = {w, View<bf16, 2>(y.data(), kTokens, kQueries)};
  run_alone<Math::e4m3_wide>(gemm::pack(queries));
  const std::vector<bf16> alone = y;
  int ran[2] = {};  // of ratio 4, of 128
  const lab::OpCases& cases = lab::find_op("compress");
  for (uint64_t seed = 1; (ran[0] < 2 || ran[1] < 2) && seed <= 400; ++seed) {
    const lab::Case c = cases.random(seed);
    const auto build = std::any_cast<std::function<CompressArgs(const lab::Addresses&)>>(c.arguments);
    lab::Case own = c;  // its memory serves to see the shapes
    lab::Addresses at;
    for (auto& b : own.buffers) at.push_back(b.bytes.data());
    const CompressArgs shape = build(at);
    // Emulated threads are slow.
    if (!fits_beside(queries, shape) || shape.k.size[0] > 12 || ran[shape.ratio == 128] > 1) continue;
    ++ran[shape.ratio == 128];
    lab::Implementation emulated{"emulated", Backend::cpu, {}, {}, {}, {}};
    emulated.workspace = [](const lab::Addresses&, const DeviceInfo&) -> size_t { return 0; };
    emulated.run = [&](const lab::Addresses& from, const Launch&) {
      std::ranges::fill(y, bf16{0x7FC1});
      run_beside(queries, build(from));
      EXPECT_FALSE(std::memcmp(y.data(), alone.data(), y.size() * sizeof(bf16)));
    };
    const lab::Verdict v = lab::check(c, emulated, lab::expect(c), lab::cpu_target());
    EXPECT_TRUE(v.ok) << "seed " << seed << ", " << c.shape << ": " << v.message;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(ran[0], 1);
  EXPECT_GT(ran[1], 1);
}
#endif

/// Shapes of V4-Flash: latents 1024 + 512, compressors 2 x 1024 + 2 x 256 or 2 x 512, 64 index heads.
together::Products flash(int64_t tokens, bool ratio4, bool exact, const DeviceInfo& device) {
  InputProductsArgs a;
  const auto fp8 = [](int64_t n) {
    return Fp8Weight{View<const e4m3, 2>(nullptr, n, 4096), View<const e8m0, 2>(nullptr, n / 128, 32)};
  };
  a.latents.x = View<const e4m3, 2>(nullptr, tokens, 4096);
  for (const int64_t n : {1024, 512}) a.latents.part[a.latents.parts++] = {fp8(n), View<bf16, 2>(nullptr, tokens, n)};
  a.compressor.x = a.weights.x = View<const bf16, 2>(nullptr, tokens, 4096);
  const std::vector<int64_t> rows =
      ratio4 ? std::vector<int64_t>{1024, 1024, 256, 256} : std::vector<int64_t>{512, 512};
  for (const int64_t n : rows)
    a.compressor.part[a.compressor.parts++] = {View<const bf16, 2>(nullptr, n, 4096),
                                               View<float, 2>(nullptr, tokens, n)};
  static const bf16 weight{};
  if (ratio4) a.weights.w = View<const bf16, 2>(&weight, 64, 4096), a.weights.y = View<bf16, 2>(nullptr, tokens, 64);
  return together::lay_out(a, device, exact);
}

/// wo_a and wo_b of random heads; outputs begin as NaN.
struct OutputProblem {
  int64_t tokens, groups, rank, heads, out;  // heads: of a group
  std::vector<bf16> o, z, y;
  std::vector<e4m3> wo_a, wo_b, z_codes;
  std::vector<e8m0> a_scale, b_scale, z_scale;

  OutputProblem(int64_t t, int64_t g, int64_t r, int64_t h, int64_t n)
      : tokens(t), groups(g), rank(r), heads(h), out(n) {
    std::mt19937 random(static_cast<unsigned>(t + r + n));
    std::normal_distribution<float> normal;
    const int64_t rows = g * r, columns = h * 512;
    for (int64_t i = 0; i < t * g * columns; ++i) o.push_back(to_bf16(normal(random) * (i % 512 < 128 ? 1e-3f : 3)));
    for (int64_t i = 0; i < rows * columns; ++i) wo_a.push_back(to_e4m3(normal(random) * 20));
    for (int64_t i = 0; i < n * rows; ++i) wo_b.push_back(to_e4m3(normal(random) * 20));
    const auto scales = [&](auto& v, int64_t r2, int64_t c) {
      for (int64_t i = 0; i < (r2 + 127) / 128 * (c / 128); ++i)
        v.push_back({static_cast<uint8_t>(115 + random() % 4)});
    };
    scales(a_scale, rows, columns), scales(b_scale, n, rows);
    z.resize(static_cast<size_t>(t * rows), bf16{0x7FFF}), y.resize(static_cast<size_t>(t * n), bf16{0x7FFF});
    z_codes.resize(z.size()), z_scale.resize(z.size() / 128);
  }
  OutputProductsArgs args() {
    const int64_t rows = groups * rank, columns = heads * 512;
    OutputProductsArgs a;
    a.heads.o = View<const bf16, 3>(o.data(), tokens, groups * heads, int64_t{512});
    a.heads.groups = static_cast<int32_t>(groups);
    a.heads.wo_a = {View<const e4m3, 2>(wo_a.data(), rows, columns),
                    View<const e8m0, 2>(a_scale.data(), (rows + 127) / 128, columns / 128)};
    a.heads.z = View<bf16, 2>(z.data(), tokens, rows), a.heads.z_codes = View<e4m3, 2>(z_codes.data(), tokens, rows);
    a.heads.z_scale = View<e8m0, 2>(z_scale.data(), tokens, rows / 128);
    a.wo_b = {View<const e4m3, 2>(wo_b.data(), out, rows),
              View<const e8m0, 2>(b_scale.data(), (out + 127) / 128, rows / 128)};
    a.y = View<bf16, 2>(y.data(), tokens, out);
    return a;
  }
};

double root_mean_square(const std::vector<bf16>& v) {
  double sum = 0;
  for (const bf16 x : v) sum += double{to_float(x)} * double{to_float(x)};
  return std::sqrt(sum / static_cast<double>(v.size()));
}

TEST(TogetherEmulated, OutputProductsInOneLaunchMatchTheReference) {
  const OutputProblem problems[] = {{1, 2, 512, 2, 128}, {3, 2, 512, 2, 256}, {2, 3, 512, 3, 192}, {1, 2, 512, 4, 512}};
  moe::Gate gate;  // goes on from launch to launch
  for (const OutputProblem& problem : problems) {
    OutputProblem want = problem, got = problem;
    const OutputProductsArgs a = want.args();
    output_project_ref(a.heads, {});
    LinearFp8Args second;
    second.x = View<const e4m3, 2>(a.heads.z_codes), second.x_scale = View<const e8m0, 2>(a.heads.z_scale);
    second.part[second.parts++] = {a.wo_b, a.y};
    linear_fp8_ref(second, {});

    together::OutputParams p = together::lay_out(got.args(), kHopper);
    ASSERT_TRUE(p.fits);
    p.gate = &gate;
    const together::OutputMaps maps = together::describe_outputs(p, device::emulated_map);
    device::emulator::run_grid(p.blocks, 1, 1, 32 * together::kOutputWarps, static_cast<size_t>(p.layout.bytes), false,
                               3, [&](std::byte* shared) { together::outputs_block(p, maps, shared); });
    const double z = root_mean_square(want.z), y = root_mean_square(want.y);
    for (size_t i = 0; i < want.z.size(); ++i)
      ASSERT_NEAR(to_float(got.z[i]), to_float(want.z[i]), 0.004 * (std::fabs(to_float(want.z[i])) + 0.01 * z)) << i;
    for (size_t i = 0; i < want.y.size(); ++i)
      ASSERT_NEAR(to_float(got.y[i]), to_float(want.y[i]), 0.004 * std::fabs(to_float(want.y[i])) + 0.005 * y) << i;
  }
}

TEST(HalfEnd, FitsFewTokensOfDenseAlignedRows) {
  EndProblem half(4, 256);
  const HalfEnd good = half.args();
  const auto with = [&](const auto& change) {
    HalfEnd e = good;
    change(e);
    return mix::end_fits(e, 4, 256);
  };
  EXPECT_TRUE(mix::end_fits(good, 4, 256));
  EXPECT_FALSE(mix::end_fits(good, 3, 256) || mix::end_fits(good, 4, 128));
  EXPECT_FALSE(mix::end_fits(EndProblem(5, 256).args(), 5, 256));
  EXPECT_FALSE(mix::end_fits(EndProblem(1, 272).args(), 1, 272));
  EXPECT_FALSE(with([](HalfEnd& e) { e.streams.stride[0] += 4; }));
  EXPECT_FALSE(with([](HalfEnd& e) { e.comb.stride[1] = 8; }));
  EXPECT_FALSE(with([](HalfEnd& e) { e.fn.data += 1; }));
  EXPECT_FALSE(with([](HalfEnd& e) { e.post.data += 1; }));
  EXPECT_FALSE(with([](HalfEnd& e) { e.sums.stride[0] += 32; }));
  EXPECT_FALSE(with([](HalfEnd& e) { e.fn.size[0] = 4; }));
}

TEST(HalfEnd, OpsOfAProcessorTakeNone) {
  EndProblem half(1, 256);
  ExpertsArgs experts;
  experts.end = half.args();
  for (const auto& v : experts_variants())
    if (v.backend == Backend::cpu) EXPECT_FALSE(v.can_run(experts, {})) << v.name;
  ResidualMixArgs mixed;
  mixed.streams = half.args().streams, mixed.fn = half.args().fn;
  for (const auto& v : residual_mix_variants()) {
    if (v.backend != Backend::cpu) continue;
    EXPECT_TRUE(v.can_run(mixed, {})) << v.name;
    ResidualMixArgs ended = mixed;
    ended.sums = View<const float, 3>(half.args().sums);
    EXPECT_FALSE(v.can_run(ended, {})) << v.name;
  }
}

TEST(TogetherEmulated, OutputProductsEndTheHalf) {
  moe::Gate gate;
  for (const OutputProblem& problem : {OutputProblem{1, 2, 512, 2, 128}, OutputProblem{4, 2, 512, 2, 256}}) {
    OutputProblem plain = problem, ending = problem;
    EndProblem half(problem.tokens, problem.out);
    for (OutputProblem* one : {&plain, &ending}) {
      OutputProductsArgs a = one->args();
      if (one == &ending) a.end = half.args();
      together::OutputParams p = together::lay_out(a, kHopper);
      ASSERT_TRUE(p.fits);
      p.gate = &gate;
      const together::OutputMaps maps = together::describe_outputs(p, device::emulated_map);
      device::emulator::run_grid(p.blocks, 1, 1, 32 * together::kOutputWarps, static_cast<size_t>(p.layout.bytes),
                                 false, 3, [&](std::byte* shared) { together::outputs_block(p, maps, shared); });
    }
    EXPECT_EQ(std::memcmp(plain.y.data(), ending.y.data(), plain.y.size() * sizeof(bf16)), 0);
    half.expect_ended(View<const bf16, 2>(ending.args().y));
  }
}

TEST(TogetherPlan, OutputProductsRunWhereTheirBlocksAreThereAtOnce) {
  const auto fits = [](int64_t tokens, int64_t groups, int64_t out, int sms = 132) {
    OutputProductsArgs a;
    const int64_t rows = groups * 1024;
    a.heads.groups = static_cast<int32_t>(groups);
    a.heads.o = View<const bf16, 3>(nullptr, tokens, groups * 8, int64_t{512});
    a.heads.wo_a.codes = View<const e4m3, 2>(nullptr, rows, int64_t{4096});
    a.heads.wo_a.scale = View<const e8m0, 2>(nullptr, rows / 128, int64_t{32});
    a.heads.z = View<bf16, 2>(nullptr, tokens, rows), a.wo_b.codes = View<const e4m3, 2>(nullptr, out, rows);
    a.wo_b.scale = View<const e8m0, 2>(nullptr, out / 128, rows / 128);
    DeviceInfo device = kHopper;
    device.sm_count = sms;
    const together::OutputParams p = together::lay_out(a, device);
    EXPECT_TRUE(!p.fits || (p.layout.stages >= 2 && p.layout.bytes <= moe::kFewShared));
    return p.fits;
  };
  for (const int64_t tokens : {1, 2, 3, 4}) EXPECT_TRUE(fits(tokens, 8, 4096)) << tokens;
  EXPECT_TRUE(fits(1, 4, 4096));  // of two ranks
  EXPECT_FALSE(fits(5, 8, 4096));
  EXPECT_FALSE(fits(1, 8, 4096, 114));
  EXPECT_FALSE(fits(1, 8, 7168));
}

TEST(TogetherPlan, AllProductsHaveAPlaceAtOnceOrRunAlone) {
  for (const bool ratio4 : {false, true})
    for (const bool exact : {false, true})
      for (const int64_t tokens : {1, 2, 8}) {
        const together::ProductsPlan plan = flash(tokens, ratio4, exact, kHopper).plan;
        ASSERT_TRUE(plan.fits) << tokens;
        // 15 clusters of 8 are there for each block that a multiprocessor has room for.
        const auto residents = static_cast<size_t>(kHopper.shared_bytes + 1024) / (plan.shared_bytes + 1024);
        EXPECT_LE(static_cast<size_t>(plan.rows[together::kProducts]), 15 * residents);
      }
  EXPECT_FALSE(flash(9, true, true, kHopper).plan.fits);
  EXPECT_FALSE(flash(0, true, true, kHopper).plan.fits);
  DeviceInfo small = kHopper;
  small.sm_count = 80;
  EXPECT_FALSE(flash(1, true, true, small).plan.fits);
}

}  // namespace
}  // namespace fathom::ops
