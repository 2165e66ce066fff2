// The small-T product kernel itself, run on the host by the emulator and compared with the reference.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <random>

#include "ops/gpu_emulator.h"
#include "ops/linear/codes_kernel.cuh"
#include "ops/linear/gemm_wide.cuh"
#include "ops/linear/linear.h"
#include "ops/linear/stream_kernel.cuh"
#include "ops/linear/strips_kernel.cuh"

namespace fathom::ops {

void linear_fp8_ref(const LinearFp8Args& a, const Launch&);
void linear_bf16_ref(const LinearBf16Args& a, const Launch&);
void linear_f32_ref(const LinearF32Args& a, const Launch&);

namespace {

using gemm::Math;
using gemm::Params;
using gemm::Plan;

template <Math kMath, int kTiles>
void emulate(const Params& p, const Plan& plan, unsigned seed) {
  device::emulator::run_grid(plan.cluster, (p.groups + plan.group_warps - 1) / plan.group_warps,
                             (p.tokens + plan.token_tile() - 1) / plan.token_tile(), plan.threads(), plan.shared_bytes,
                             plan.cluster > 1, seed, [&](std::byte* shared) {
                               if constexpr (gemm::is_wide(kMath))
                                 gemm::wide_block<kMath, kTiles>(p, shared);
                               else
                                 gemm::gemm_block<kMath, kTiles>(p, shared);
                             });
}

template <Math kMath>
void emulate(Params p, const Plan& plan, unsigned seed = 1) {
  gemm::set_plan(p, plan);
  if (plan.tiles == 1) return emulate<kMath, 1>(p, plan, seed);
  if (plan.tiles == 2) return emulate<kMath, 2>(p, plan, seed);
  if (plan.tiles == 4) return emulate<kMath, 4>(p, plan, seed);
  emulate<kMath, 8>(p, plan, seed);
}

/// Storage of arguments; rows are padded and padding, like outputs, starts as NaN.
struct Problem {
  int64_t tokens, k, x_stride, y_stride;
  std::vector<int64_t> rows;
  std::vector<e4m3> x8;
  std::vector<e8m0> x_scale;
  std::vector<bf16> x16;
  std::vector<std::vector<e4m3>> w8;
  std::vector<std::vector<e8m0>> w_scale;
  std::vector<std::vector<bf16>> w16, y16;
  std::vector<std::vector<float>> y32;

  Problem(int64_t t, int64_t depth, std::vector<int64_t> n, unsigned seed)
      : tokens(t), k(depth), x_stride(depth + 16), rows(std::move(n)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto code = [&] {
      uint8_t c;
      do c = static_cast<uint8_t>(random());
      while ((c & 0x7F) == 0x7F);
      return e4m3{c};
    };
    const auto scale = [&](int low) { return e8m0{static_cast<uint8_t>(127 + low + static_cast<int>(random() % 4))}; };
    y_stride = *std::max_element(rows.begin(), rows.end()) + 3;
    x8.assign(t * x_stride, e4m3{0x7F}), x16.assign(t * x_stride, bf16{0x7FC0});
    const int64_t blocks = (depth + 127) / 128;
    for (int64_t i = 0; i < t; ++i)
      for (int64_t c = 0; c < depth; ++c)
        x8[i * x_stride + c] = code(), x16[i * x_stride + c] = to_bf16(normal(random));
    for (int64_t i = 0; i < t * (blocks + 1); ++i) x_scale.push_back(scale(-9));
    for (const int64_t m : rows) {
      auto& codes = w8.emplace_back();
      auto& values = w16.emplace_back();
      auto& scales = w_scale.emplace_back();
      for (int64_t i = 0; i < m * depth; ++i)
        codes.push_back(code()), values.push_back(to_bf16(normal(random) * 0.02f));
      for (int64_t i = 0; i < (m + 127) / 128 * blocks; ++i) scales.push_back(scale(-14));
    }
    poison();
  }

  void poison() {
    y16.assign(rows.size(), std::vector<bf16>(tokens * y_stride, bf16{0x7FC0}));
    y32.assign(rows.size(), std::vector<float>(tokens * y_stride, NAN));
  }

  template <typename T>
  View<T, 2> view(T* data, int64_t r, int64_t c, int64_t stride) const {
    View<T, 2> v(data, r, c);
    v.stride[0] = stride;
    return v;
  }
  LinearFp8Args fp8(int64_t first = 0, int64_t count = -1) {
    const int64_t n = count < 0 ? tokens : count, blocks = k / 128;
    LinearFp8Args a;
    a.x = view<const e4m3>(x8.data() + first * x_stride, n, k, x_stride);
    a.x_scale = view<const e8m0>(x_scale.data() + first * (blocks + 1), n, blocks, blocks + 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& p = a.part[a.parts++];
      p.w = {View<const e4m3, 2>(w8[i].data(), rows[i], k),
             View<const e8m0, 2>(w_scale[i].data(), (rows[i] + 127) / 128, blocks)};
      p.y = view(y16[i].data() + first * y_stride, n, rows[i], y_stride);
    }
    return a;
  }
  LinearF32Args f32() {
    LinearF32Args a;
    a.x = view<const bf16>(x16.data(), tokens, k, x_stride);
    for (size_t i = 0; i < rows.size(); ++i)
      a.part[a.parts++] = {View<const bf16, 2>(w16[i].data(), rows[i], k),
                           view(y32[i].data(), tokens, rows[i], y_stride)};
    return a;
  }
  LinearBf16Args b16(float factor) {
    LinearBf16Args a;
    a.x = view<const bf16>(x16.data(), tokens, k, x_stride), a.w = View<const bf16, 2>(w16[0].data(), rows[0], k);
    a.factor = factor, a.y = view(y16[0].data(), tokens, rows[0], y_stride);
    return a;
  }
};

/// Largest error of a row relative to its largest element; a written element must not be NaN, padding must stay NaN.
template <typename T>
double worst_error(const Problem& p, const std::vector<std::vector<T>>& got, const std::vector<std::vector<T>>& want) {
  const auto value = [](T v) {
    if constexpr (std::is_same_v<T, float>)
      return v;
    else
      return to_float(v);
  };
  double worst = 0;
  for (size_t i = 0; i < p.rows.size(); ++i)
    for (int64_t t = 0; t < p.tokens; ++t) {
      double largest = 0, error = 0;
      for (int64_t n = 0; n < p.y_stride; ++n) {
        const double a = value(got[i][t * p.y_stride + n]), b = value(want[i][t * p.y_stride + n]);
        if (std::isnan(a) != (n >= p.rows[i])) return INFINITY;
        if (n < p.rows[i]) largest = std::max(largest, std::abs(b)), error = std::max(error, std::abs(a - b));
      }
      worst = std::max(worst, error / largest);
    }
  return worst;
}

DeviceInfo gpu(int capability, int sms, int64_t shared) {
  return {Backend::cuda, capability, sms, shared, 0};
}
const DeviceInfo kH200 = gpu(90, 132, 227 * 1024), kSmall = gpu(80, 8, 99 * 1024);

template <Math kMath>
void expect_fp8(int64_t tokens, int64_t k, const std::vector<int64_t>& rows, const DeviceInfo& device, bool clusters) {
  Problem p(tokens, k, rows, 7);
  linear_fp8_ref(p.fp8(), {});
  const auto want = p.y16;
  p.poison();
  const Params params = gemm::pack(p.fp8());
  const Plan plan = gemm::make_plan(kMath, params.groups, params.units, tokens, device, clusters);
  emulate<kMath>(params, plan);
  EXPECT_LE(worst_error(p, p.y16, want), 4e-3) << tokens << " x " << k << ", slices " << plan.slices() << ", cluster "
                                               << plan.cluster << ", groups " << plan.group_warps;
}

TEST(LinearEmulated, Fp8ProductsMatchTheReference) {
  expect_fp8<Math::e4m3>(1, 128, {16}, kH200, false);
  expect_fp8<Math::e4m3>(3, 640, {40, 7, 129}, kH200, false);
  expect_fp8<Math::e4m3>(5, 1152, {33}, kH200, true);
  expect_fp8<Math::e4m3>(17, 1280, {48, 16}, kH200, true);
  expect_fp8<Math::e4m3>(40, 2048, {24}, kSmall, false);
  expect_fp8<Math::e4m3>(70, 512, {20}, kH200, true);
}

TEST(LinearEmulated, Fp8ProductsWidenedToFp16MatchTheReference) {
  expect_fp8<Math::e4m3_f16>(1, 128, {16}, kH200, false);
  expect_fp8<Math::e4m3_f16>(3, 640, {40, 7, 129}, kH200, false);
  expect_fp8<Math::e4m3_f16>(9, 2304, {33}, kSmall, false);
  expect_fp8<Math::e4m3_f16>(20, 1280, {48, 16}, kH200, true);
}

TEST(LinearEmulated, Fp8ProductsByWarpgroupsMatchTheReference) {
  expect_fp8<Math::e4m3_wide>(1, 128, {16}, kH200, true);
  expect_fp8<Math::e4m3_wide>(3, 640, {40, 7, 129}, kH200, true);
  expect_fp8<Math::e4m3_wide>(9, 2304, {33}, kH200, true);
  expect_fp8<Math::e4m3_wide>(20, 1280, {48, 16}, kH200, true);
  expect_fp8<Math::e4m3_wide>(70, 512, {20}, kH200, true);
}

TEST(LinearEmulated, LongRowsComeInChunks) {
  Problem p(4, 128 * 25, {16}, 3);
  linear_fp8_ref(p.fp8(), {});
  const auto want = p.y16;
  const Params params = gemm::pack(p.fp8());
  Plan plan;
  plan.log2_slices = 1, plan.slice_warps = 2, plan.shared_bytes = 200 * 1024;
  const auto expect_right = [&](auto run, Math math, int tiles) {
    plan.tiles = tiles, plan.chunk_units = std::max(2, gemm::chunk_step(math, tiles));
    plan.group_warps = gemm::least_group_warps(math);
    p.poison();
    run();
    EXPECT_LE(worst_error(p, p.y16, want), 4e-3) << tiles;
  };
  for (const int tiles : {1, 2, 4, 8}) {
    expect_right([&] { emulate<Math::e4m3>(params, plan); }, Math::e4m3, tiles);
    expect_right([&] { emulate<Math::e4m3_f16>(params, plan); }, Math::e4m3_f16, tiles);
    if (tiles < 8) expect_right([&] { emulate<Math::e4m3_wide>(params, plan); }, Math::e4m3_wide, tiles);
  }
}

TEST(LinearEmulated, Bf16AndF32ProductsMatchTheReference) {
  for (const auto& [tokens, k] : {std::pair<int64_t, int64_t>{1, 8}, {2, 200}, {9, 72}, {33, 712}, {6, 1096}}) {
    Problem p(tokens, k, {40, 3, 18}, 11);
    linear_f32_ref(p.f32(), {});
    linear_bf16_ref(p.b16(0.011f), {});
    const auto want32 = p.y32;
    const auto want16 = p.y16[0];
    const auto run = [&, tokens = tokens](const Params& params, Math math, bool clusters) {
      const Plan plan = gemm::make_plan(math, params.groups, params.units, tokens, kH200, clusters);
      if (math == Math::bf16) return emulate<Math::bf16>(params, plan);
      emulate<Math::bf16_wide>(params, plan);
    };
    for (const auto& [math, clusters] : {std::pair{Math::bf16, false}, {Math::bf16, true}, {Math::bf16_wide, true}}) {
      p.poison();
      run(gemm::pack(p.f32()), math, clusters);
      EXPECT_LE(worst_error(p, p.y32, want32), 3e-6) << tokens << " x " << k;
      run(gemm::pack(p.b16(0.011f)), math, clusters);
      Problem one = p;
      one.rows.resize(1);
      const std::vector<std::vector<bf16>> got{p.y16[0]}, want{want16};
      EXPECT_LE(worst_error(one, got, want), 8e-3) << tokens << " x " << k;
    }
  }
}

/// Token 21 of a batch of `count` tokens from `first` on, as bits.
template <Math kMath>
std::vector<uint16_t> bits_of_token_21(Problem& p, int64_t first, int64_t count, const DeviceInfo& device,
                                       bool clusters, std::optional<int> slices = {}) {
  p.poison();
  const Params params = gemm::pack(p.fp8(first, count));
  emulate<kMath>(params, gemm::make_plan(kMath, params.groups, params.units, count, device, clusters, slices));
  std::vector<uint16_t> row;
  for (size_t i = 0; i < p.rows.size(); ++i)
    for (int64_t n = 0; n < p.rows[i]; ++n) row.push_back(p.y16[i][21 * p.y_stride + n].bits);
  return row;
}

TEST(LinearEmulated, ARowHasTheSameBitsWhateverTheBatch) {
  Problem p(40, 1152, {40, 16}, 5);
  const auto alone = bits_of_token_21<Math::e4m3>(p, 21, 1, kH200, false);
  EXPECT_EQ(alone, bits_of_token_21<Math::e4m3>(p, 21, 1, kH200, true));
  EXPECT_EQ(alone, bits_of_token_21<Math::e4m3>(p, 16, 12, kH200, true));
  EXPECT_EQ(alone, bits_of_token_21<Math::e4m3>(p, 0, 40, kH200, true));
  EXPECT_EQ(alone, bits_of_token_21<Math::e4m3>(p, 0, 40, kSmall, false));
  const auto wide = bits_of_token_21<Math::e4m3_wide>(p, 21, 1, kH200, true);
  EXPECT_EQ(wide, bits_of_token_21<Math::e4m3_wide>(p, 16, 12, kH200, true));
  EXPECT_EQ(wide, bits_of_token_21<Math::e4m3_wide>(p, 0, 40, kH200, true));
}

void stream(const LinearFp8Args& a, bool paired = false, unsigned seed = 1) {
  stream::Work work = stream::pack(a);
  stream::Plan plan = stream::make_plan(stream::Input::e4m3, work.row_tiles, work.params.units, work.params.tokens);
  plan.paired = paired && plan.slices() > 1;
  stream::fit(stream::Input::e4m3, plan, work.params.units);
  stream::set_plan(work.params, plan);
  const stream::Maps maps = stream::describe_weights(work, device::emulated_map);
  stream::with_tiles(plan, [&]<int kTiles>() {
    device::emulator::run_grid(plan.cluster(), plan.token_tiles, plan.grid_tiles(), stream::threads(kTiles),
                               plan.shared_bytes, plan.cluster() > 1, seed,
                               [&](std::byte* shared) { stream::linear_block<kTiles>(work.params, maps, shared); });
  });
}

template <typename Run>
void expect_right(int64_t tokens, int64_t k, const std::vector<int64_t>& rows, const Run& run) {
  Problem p(tokens, k, rows, 7);
  linear_fp8_ref(p.fp8(), {});
  const auto want = p.y16;
  p.poison();
  run(p.fp8());
  EXPECT_LE(worst_error(p, p.y16, want), 4e-3) << tokens << " x " << k;
}

void expect_streamed(int64_t tokens, int64_t k, const std::vector<int64_t>& rows, bool paired = false) {
  expect_right(tokens, k, rows, [&](const LinearFp8Args& a) { stream(a, paired); });
}

TEST(LinearEmulated, Fp8ProductsThatStreamMatchTheReference) {
  expect_streamed(1, 128, {16});
  expect_streamed(3, 640, {40, 7, 129});
  expect_streamed(9, 2304, {33});
  expect_streamed(20, 1280, {48, 16});
  expect_streamed(70, 1536, {20});
  expect_streamed(40, 128 * 17, {130});
  expect_streamed(3, 640, {40, 7, 129}, true);
  expect_streamed(20, 256, {48, 16}, true);
  expect_streamed(40, 128 * 9, {70}, true);
}

TEST(LinearEmulated, ARowThatStreamsHasTheSameBitsWhateverTheBatch) {
  Problem p(40, 1152, {40, 16}, 5);
  const auto bits = [&](int64_t first, int64_t count, bool paired = false) {
    p.poison();
    stream(p.fp8(first, count), paired, static_cast<unsigned>(count));
    std::vector<uint16_t> row;
    for (size_t i = 0; i < p.rows.size(); ++i)
      for (int64_t n = 0; n < p.rows[i]; ++n) row.push_back(p.y16[i][21 * p.y_stride + n].bits);
    return row;
  };
  const auto alone = bits(21, 1);
  EXPECT_EQ(alone, bits(16, 12));
  EXPECT_EQ(alone, bits(10, 20));
  EXPECT_EQ(alone, bits(0, 40));
  EXPECT_EQ(alone, bits(21, 2, true));
  EXPECT_EQ(alone, bits(0, 40, true));
  // The kernel for few tokens adds in the same order.
  const int slices = stream::make_plan(stream::Input::e4m3, 2, 9, 1).log2_slices;
  EXPECT_EQ(alone, bits_of_token_21<Math::e4m3_wide>(p, 21, 1, kH200, true, slices));
  EXPECT_EQ(alone, bits_of_token_21<Math::e4m3_wide>(p, 16, 8, kH200, true, slices));
}

void multiply_as_codes(const LinearFp8Args& a, unsigned seed = 1) {
  stream::Work work = stream::pack(a);
  const stream::Plan plan = stream::make_codes_plan(work.row_tiles, work.params.units, work.params.tokens);
  stream::set_plan(work.params, plan);
  const stream::Maps maps = stream::describe_codes(work, plan, device::emulated_map);
  stream::with_tiles(plan, [&]<int kTiles>() {
    device::emulator::run_grid(plan.cluster(), plan.token_tiles, plan.row_tiles, stream::codes_threads(kTiles),
                               plan.shared_bytes, plan.cluster() > 1, seed,
                               [&](std::byte* shared) { stream::codes_block<kTiles>(work.params, maps, shared); });
  });
}

void expect_right_as_codes(int64_t tokens, int64_t k, const std::vector<int64_t>& rows) {
  expect_right(tokens, k, rows, [](const LinearFp8Args& a) { multiply_as_codes(a); });
}

TEST(LinearEmulated, ProductsOfCodesAsTheyAreMatchTheReference) {
  expect_right_as_codes(1, 128, {16});
  expect_right_as_codes(3, 640, {40, 7, 129});
  expect_right_as_codes(9, 2304, {33});
  expect_right_as_codes(20, 1280, {48, 16});
  expect_right_as_codes(40, 128 * 17, {130});
  expect_right_as_codes(70, 128 * 66, {20});
}

/// As on a GPU of so few multiprocessors that the kernel pays.
void multiply_strips(const LinearFp8Args& a, int processors, std::vector<float>& sums, unsigned seed) {
  const stream::Work work = stream::pack(a);
  const auto plan =
      strips::make_plan(strips::strips_of(work.params), work.params.units, work.params.tokens, processors);
  ASSERT_TRUE(plan);
  sums.resize(plan->sums_bytes / sizeof(float));
  const strips::Params params = strips::params_for(work, *plan, sums.data());
  const strips::Maps maps = strips::describe_strips(work, device::emulated_map);
  device::emulator::run_grid(plan->slices(), 1, plan->blocks, strips::kThreads, plan->shared_bytes, false, seed,
                             [&](std::byte* shared) { strips::strips_block(params, maps, shared); });
}

void expect_right_strips(int64_t tokens, int64_t k, const std::vector<int64_t>& rows, int processors) {
  std::vector<float> sums;
  for (const unsigned seed : {1u, 2u})  // the second launch finds the sums as the first one left them
    expect_right(tokens, k, rows, [&](const LinearFp8Args& a) { multiply_strips(a, processors, sums, seed); });
  for (const float v : sums) ASSERT_EQ(std::bit_cast<uint32_t>(v), 0u);
}

TEST(LinearEmulated, ProductsOfStripsMatchTheReference) {
  expect_right_strips(33, 128 * 9, {129}, 2);     // one slice, rings go round
  expect_right_strips(57, 128 * 11, {70, 7}, 4);  // two slices
  expect_right_strips(64, 128 * 9, {40, 64}, 4);  // four
}

TEST(LinearPlan, StripsHaveRoomAndAPlaceForEachBlock) {
  for (const int processors : {114, 132})
    for (const int strips : {1, 20, 33, 48, 64, 100, 128, 256, 400, 512, 640, 660, 1000})
      for (const int units : {1, 3, 8, 32, 64, 65, 130})
        for (const int64_t tokens : {32, 33, 64, 65}) {
          const auto p = strips::make_plan(strips, units, tokens, processors);
          if (!p) continue;
          EXPECT_TRUE(tokens > 32 && tokens <= 64);
          EXPECT_LE(p->blocks * p->slices(), processors);
          EXPECT_GE(p->blocks * strips::kStrips, strips);
          EXPECT_LE(p->shared_bytes, size_t{227 * 1024});
          EXPECT_LE(2 * strips::kTeams * p->stages * 8, strips::kBarriers);
          EXPECT_GE(p->stages, 1);
        }
  EXPECT_EQ(strips::make_plan(64, 64, 64, 132)->slices(), 4);
  EXPECT_FALSE(strips::make_plan(512, 8, 64, 132));
  EXPECT_FALSE(strips::make_plan(24, 32, 64, 132));
}

TEST(LinearPlan, StripsWantTheSameMemoryForAnyNumberOfTokens) {
  for (const int64_t rows : {4096, 4160, 1024, 16384}) {
    const auto work = [&](int64_t tokens) {
      LinearFp8Args a;
      a.x = View<const e4m3, 2>(nullptr, tokens, 8192);
      a.part[a.parts++].w.codes = View<const e4m3, 2>(nullptr, rows, 8192);
      return stream::pack(a);
    };
    const size_t bytes = strips::workspace_bytes(work(1), 132);
    EXPECT_EQ(bytes > 0, rows == 4096 || rows == 4160) << rows;
    for (int64_t tokens = 1; tokens <= 2048; tokens += tokens < 80 ? 1 : 41) {
      EXPECT_EQ(strips::workspace_bytes(work(tokens), 132), bytes) << tokens;
      const auto plan = strips::make_plan(strips::strips_of(work(tokens).params), 64, tokens, 132);
      EXPECT_LE(plan ? plan->sums_bytes : 0, bytes) << tokens;
    }
  }
}

TEST(LinearPlan, CodesAsTheyAreHaveRoomInEveryShape) {
  for (const int row_tiles : {1, 2, 8, 12, 32, 256, 320})
    for (const int units : {1, 3, 8, 32, 64, 130, 512})
      for (const int64_t tokens : {1, 8, 9, 16, 17, 33, 64, 65, 256, 2048}) {
        const stream::Plan p = stream::make_codes_plan(row_tiles, units, tokens);
        EXPECT_TRUE(stream::can_multiply_codes(units));
        EXPECT_LE(p.slices(), std::min(units, stream::kMaxSlices));
        EXPECT_LE(longest_slice(units, p.log2_slices), stream::kMostCodesUnits);
        EXPECT_LE(p.shared_bytes, size_t{227 * 1024});
        EXPECT_GE(p.stages, std::min(2, longest_slice(units, p.log2_slices)));
      }
  EXPECT_FALSE(stream::can_multiply_codes(513));
}

TEST(LinearPlan, StreamsWithTheSameSlicesWhateverTheBatch) {
  for (const int row_tiles : {1, 2, 8, 12, 32, 256, 320})
    for (const int units : {1, 3, 8, 32, 64, 130})
      for (const int64_t tokens : {1, 8, 9, 16, 17, 33, 64, 65, 256, 2048}) {
        const stream::Plan p = stream::make_plan(stream::Input::e4m3, row_tiles, units, tokens);
        EXPECT_EQ(p.log2_slices, stream::make_plan(stream::Input::e4m3, row_tiles, units, 1).log2_slices);
        EXPECT_LE(p.slices(), std::min(units, stream::kMaxSlices));
        EXPECT_LE(p.shared_bytes, size_t{227 * 1024});
        EXPECT_GE(p.stages, 1);
        EXPECT_GE(static_cast<int64_t>(p.token_tiles) * stream::tokens_of(p.tiles), tokens);
      }
}

TEST(LinearPlan, KeepsSlicesAndLimitsForEveryShapeAndDevice) {
  for (const Math math : {Math::e4m3, Math::e4m3_f16, Math::e4m3_wide, Math::bf16, Math::bf16_wide})
    for (const DeviceInfo& device : {kH200, kSmall, gpu(120, 188, 99 * 1024), gpu(80, 108, 163 * 1024)})
      for (const int groups : {1, 4, 16, 96, 160, 256, 2048, 8080})
        for (const int units : {1, 3, 8, 32, 64, 130}) {
          if (gemm::is_wide(math) && device.compute_capability != 90) continue;
          const int slices = gemm::make_plan(math, groups, units, 1, kH200, true).log2_slices;
          for (const int64_t tokens : {1, 8, 9, 16, 17, 33, 64, 65, 256, 2048}) {
            const Plan p = gemm::make_plan(math, groups, units, tokens, device, device.compute_capability == 90);
            ASSERT_EQ(p.log2_slices, slices);
            ASSERT_EQ(p.slices(), p.cluster * p.slice_warps);
            ASSERT_LE(p.threads(), 32 * gemm::most_warps(math, p.tiles));
            ASSERT_EQ(p.group_warps % gemm::least_group_warps(math), 0);
            ASSERT_LE(p.shared_bytes, static_cast<size_t>(device.shared_bytes));
            ASSERT_TRUE(p.chunk_units >= longest_slice(units, slices) ||
                        p.chunk_units % gemm::chunk_step(math, p.tiles) == 0);
          }
        }
}

}  // namespace
}  // namespace fathom::ops
