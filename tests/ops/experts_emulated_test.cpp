// The expert kernels themselves, run on the host by the emulator and compared with the reference.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "ops/experts/experts.h"
#include "ops/experts/moe_few_both.cuh"
#include "ops/experts/moe_many.cuh"
#include "ops/experts/moe_sum.cuh"
#include "ops/experts/moe_teams.cuh"
#include "ops/gpu_emulator.h"
#include "ops/half_end_problem.h"
#include "ops/order/order.h"

namespace fathom::ops {

void experts_ref(const ExpertsArgs& a, const Launch&);

namespace {

#ifdef FATHOM_SANITIZED
constexpr bool kSanitized = true;  // emulated threads are slower still
#else
constexpr bool kSanitized = false;
#endif

template <ExpertFormat kFormat, int kTiles>
void emulate(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  device::emulator::run_grid(plan.up_blocks, plan.most_tiles, 1, plan.up_threads(), plan.up_shared, false, seed,
                             [&](std::byte* shared) { moe::up_block<kFormat, kTiles>(p, shared); });
  device::emulator::run_grid(plan.down_blocks, plan.most_tiles, 1, plan.down_threads(), plan.down_shared, false, seed,
                             [&](std::byte* shared) { moe::down_block<kFormat, kTiles>(p, shared); });
}

template <ExpertFormat kFormat>
void emulate(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  if (plan.tiles == 1) return emulate<kFormat, 1>(p, plan, seed);
  if (plan.tiles == 2) return emulate<kFormat, 2>(p, plan, seed);
  emulate<kFormat, kFormat == ExpertFormat::nvfp4 ? 6 : 8>(p, plan, seed);
}

template <bool kGroups>
void emulate_stream(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  constexpr size_t kShared = moe::kStreamShared;
  const moe::Maps maps = moe::describe_weights(p, device::emulated_map);
  device::emulator::run_grid(plan.stream_blocks, 1, 1, 32 * moe::kStreamWarps, kShared, false, seed,
                             [&](std::byte* shared) { moe::stream_up<ExpertFormat::mxfp4, kGroups>(p, maps, shared); });
  device::emulator::run_grid(
      plan.stream_blocks, 1, 1, 32 * moe::kStreamWarps, kShared, false, seed,
      [&](std::byte* shared) { moe::stream_down<ExpertFormat::mxfp4, kGroups>(p, maps, shared); });
}

template <bool kBytes>
void emulate_two_launches(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  const moe::Maps maps = moe::describe_weights(p, device::emulated_map);
  device::emulator::run_grid(plan.up_blocks, 1, 1, 32 * plan.few_up.warps, plan.few_up.bytes, false, seed,
                             [&](std::byte* shared) { moe::few_up<kBytes>(p, maps, shared); });
  device::emulator::run_grid(plan.down_blocks, 1, 1, 32 * plan.few_down.warps, plan.few_down.bytes, false, seed,
                             [&](std::byte* shared) { moe::few_down<kBytes>(p, maps, shared); });
}

template <bool kBytes>
void emulate_few(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  const moe::Maps maps = moe::describe_weights(p, device::emulated_map);
  if (plan.both) {
    const int blocks = std::max(plan.up_blocks, plan.down_blocks);
    const int launches = p.tokens == 1 && p.d == 256 && !p.end.streams ? 2 : 1;  // the gate is ready for the next
    for (int launch = 0; launch < launches; ++launch)
      device::emulator::run_grid(blocks, 1, 1, 32 * plan.few_up.warps, plan.few_up.bytes, false, seed,
                                 [&](std::byte* shared) { moe::few_both<kBytes>(p, maps, shared); });
    if (p.tokens < 3) return;  // so many take two launches where rows are as wide as those of a model
    const std::vector<bf16> both(p.y, p.y + (p.tokens - 1) * p.y_stride + p.d);
    emulate_two_launches<kBytes>(p, plan, seed);
    for (int64_t t = 0; t < p.tokens; ++t)
      EXPECT_EQ(std::memcmp(&both[static_cast<size_t>(t * p.y_stride)], p.y + t * p.y_stride,
                            static_cast<size_t>(p.d) * sizeof(bf16)),
                0);
    return;
  }
  emulate_two_launches<kBytes>(p, plan, seed);
}

void emulate_sum(const moe::Params& p, unsigned seed) {
  const int blocks = static_cast<int>((int64_t{p.tokens} * (p.d / 8) + moe::kSumThreads - 1) / moe::kSumThreads);
  device::emulator::run_grid(blocks, 1, 1, moe::kSumThreads, 0, false, seed, [&](std::byte*) { moe::sum_block(p); });
}

void emulate_many(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  const moe::Maps maps = moe::describe_weights(p, device::emulated_map, moe::kManyRows);
  const auto run = [&](int blocks, int threads, const std::function<void(std::byte*)>& block) {
    device::emulator::run_grid(blocks, 1, 1, threads, moe::kManyShared, false, seed, block);
  };
  const auto run_both = [&]<int kTiles>() {
    run(plan.many_blocks, moe::kManyThreads, [&](std::byte* s) { moe::many_block<false, kTiles>(p, maps, s); });
    run(plan.many_blocks, moe::kManyThreads, [&](std::byte* s) { moe::many_block<true, kTiles>(p, maps, s); });
  };
  plan.many_tokens > 32 ? run_both.operator()<8>() : run_both.operator()<4>();
  emulate_sum(p, seed);
}

template <int kTiles>
void emulate_teams(const moe::Params& p, const moe::Plan& plan, unsigned seed) {
  const moe::Maps maps = moe::describe_weights(p, device::emulated_map, moe::kBlock);
  constexpr int kThreads = moe::kTeamThreads, kShared = moe::team_shared(8 * kTiles);
  device::emulator::run_grid(plan.stream_blocks, 1, 1, kThreads, kShared, false, seed,
                             [&](std::byte* shared) { moe::team_up<kTiles>(p, maps, shared); });
  device::emulator::run_grid(plan.stream_blocks, 1, 1, kThreads, kShared, false, seed,
                             [&](std::byte* shared) { moe::team_down<kTiles>(p, maps, shared); });
  emulate_sum(p, seed);
}

/// Codes in an order of the kernels; `to` keeps them.
void order(ExpertWeight& w, int32_t experts, std::vector<std::byte>& to, CodeOrder as = CodeOrder::halves) {
  to.assign(w.codes, w.codes + w.codes_stride * experts);
  order_codes(to, as);
  w.codes = to.data(), w.order = as;
}

/// All kernels in workspace that starts as NaN. `stream_blocks`: of a GPU where warps stream, and where few tokens have
/// kernels of their own; `groups`: with sums in groups; `as`: the order of codes.
void emulate(ExpertsArgs a, unsigned seed = 1, int stream_blocks = 0, bool groups = false,
             CodeOrder as = CodeOrder::halves) {
  std::vector<std::byte> ordered[3];
  ExpertWeight* matrices[] = {&a.w1, &a.w3, &a.w2};
  if (a.w1.format != ExpertFormat::fp8)
    for (int i = 0; i < 3; ++i) order(*matrices[i], a.experts, ordered[i], as);
  const moe::Plan plan = moe::make_plan(a, 8, stream_blocks);
  moe::Params p = moe::pack(a, plan);
  p.groups = groups && plan.stream_blocks > 0;
  std::vector<std::byte> workspace(moe::carve(a, plan, nullptr, p) + 256, std::byte{0xFF});
  const auto start = reinterpret_cast<uintptr_t>(workspace.data());
  moe::carve(a, plan, workspace.data() + (start + 255) / 256 * 256 - start, p);
  *p.gate = {};
  if (plan.few) return p.bytes ? emulate_few<true>(p, plan, seed) : emulate_few<false>(p, plan, seed);
  device::emulator::run_grid(p.tokens + 1, 1, 1, moe::kPrepareThreads, plan.prepare_shared, false, seed,
                             [&](std::byte* shared) { moe::prepare_block(p, shared); });
  if (plan.teams) return plan.team_tokens == 8 ? emulate_teams<1>(p, plan, seed) : emulate_teams<2>(p, plan, seed);
  if (plan.many_blocks > 0) return emulate_many(p, plan, seed);
  if (plan.stream_blocks > 0)
    return groups ? emulate_stream<true>(p, plan, seed) : emulate_stream<false>(p, plan, seed);
  if (a.w1.format == ExpertFormat::mxfp4) return emulate<ExpertFormat::mxfp4>(p, plan, seed);
  if (a.w1.format == ExpertFormat::nvfp4) return emulate<ExpertFormat::nvfp4>(p, plan, seed);
  emulate<ExpertFormat::fp8>(p, plan, seed);
}

struct Shape {
  int64_t tokens = 1, d = 256, inner = 128, shared = 128, choices = 2;
  int32_t experts = 4;
  ExpertFormat format = ExpertFormat::mxfp4;
};

/// Storage of arguments. Rows of x and y are padded; padding, outputs and experts that nobody chose start as NaN.
struct Problem {
  struct Matrix {
    ExpertWeight shape;
    std::vector<std::byte> codes, scale;
    std::vector<float> global;
    ExpertWeight view() const {
      ExpertWeight w = shape;
      w.codes = codes.data(), w.scale = scale.data(), w.global_scale = global.data();
      return w;
    }
  };
  struct Shared {
    int64_t rows, columns;
    std::vector<e4m3> codes;
    std::vector<e8m0> scale;
    Fp8Weight view() const {
      return {View<const e4m3, 2>(codes.data(), rows, columns),
              View<const e8m0, 2>(scale.data(), rows / 128, columns / 128)};
    }
  };
  Shape shape;
  std::mt19937 random;
  std::vector<e4m3> x;
  std::vector<e8m0> x_scale;
  std::vector<int32_t> expert;
  std::vector<float> weight;
  Matrix w1, w3, w2;
  Shared s1, s3, s2;
  std::vector<bf16> y;

  Problem(const Shape& s, unsigned seed) : shape(s), random(seed) {
    x.assign(s.tokens * x_stride(), e4m3{0x7F});
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t i = 0; i < s.d; ++i) x[t * x_stride() + i] = code();
      std::vector<int32_t> all(s.experts);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + s.choices);
      expert.insert(expert.end(), all.begin(), all.begin() + s.choices);
      for (int64_t c = 0; c < s.choices; ++c) weight.push_back(0.1f + static_cast<float>(random() % 100) / 150);
    }
    for (int64_t i = 0; i < s.tokens * s.d / 128; ++i) x_scale.push_back(power(-8));
    w1 = matrix(s.inner, s.d), w3 = matrix(s.inner, s.d), w2 = matrix(s.d, s.inner);
    if (s.shared) s1 = shared(s.shared, s.d), s3 = shared(s.shared, s.d), s2 = shared(s.d, s.shared);
    poison();
  }
  void poison() { y.assign(shape.tokens * y_stride(), bf16{0x7FC0}); }
  int64_t x_stride() const { return shape.d + 8; }
  int64_t y_stride() const { return shape.d + 8; }

  e4m3 code() {
    uint8_t c;
    do c = static_cast<uint8_t>(random());
    while ((c & 0x7F) == 0x7F);
    return {c};
  }
  e8m0 power(int low) { return {static_cast<uint8_t>(127 + low + static_cast<int>(random() % 3))}; }

  Matrix matrix(int64_t rows, int64_t columns) {
    Matrix m;
    m.shape.format = shape.format, m.shape.rows = rows, m.shape.columns = columns;
    m.shape.codes_stride = rows * m.shape.code_row_bytes() + 16;
    m.shape.scale_stride =
        ((shape.format == ExpertFormat::fp8 ? rows / 128 : rows) * m.shape.scale_columns() + 15) / 8 * 8;
    m.codes.resize(m.shape.codes_stride * shape.experts);
    for (auto& b : m.codes) b = static_cast<std::byte>(code().bits);
    const int level = -static_cast<int>(std::log2(static_cast<double>(columns)) / 2);
    for (int64_t i = 0; i < m.shape.scale_stride * shape.experts; ++i) {
      const auto e = static_cast<int32_t>(i / m.shape.scale_stride);
      const bool used = std::find(expert.begin(), expert.end(), e) != expert.end();
      if (shape.format == ExpertFormat::nvfp4)
        m.scale.push_back(used ? static_cast<std::byte>(1 + random() % 0x77) : std::byte{0x7F});  // subnormals too
      else
        m.scale.push_back(used ? static_cast<std::byte>(power(level - (shape.format == ExpertFormat::fp8 ? 8 : 2)).bits)
                               : std::byte{0xFF});
    }
    for (int32_t e = 0; e < shape.experts; ++e) m.global.push_back(0.001f + 0.0001f * static_cast<float>(e));
    return m;
  }
  Shared shared(int64_t rows, int64_t columns) {
    Shared w{rows, columns, {}, {}};
    for (int64_t i = 0; i < rows * columns; ++i) w.codes.push_back(code());
    for (int64_t i = 0; i < rows / 128 * (columns / 128); ++i) w.scale.push_back(power(-13));
    return w;
  }
  ExpertsArgs args(int64_t first = 0, int64_t count = -1) {
    const int64_t n = count < 0 ? shape.tokens : count;
    ExpertsArgs a;
    a.x = View<const e4m3, 2>(x.data() + first * x_stride(), n, shape.d), a.x.stride[0] = x_stride();
    a.x_scale = View<const e8m0, 2>(x_scale.data() + first * shape.d / 128, n, shape.d / 128);
    a.expert = View<const int32_t, 2>(expert.data() + first * shape.choices, n, shape.choices);
    a.weight = View<const float, 2>(weight.data() + first * shape.choices, n, shape.choices);
    a.experts = shape.experts;
    a.w1 = w1.view(), a.w3 = w3.view(), a.w2 = w2.view();
    if (shape.shared) a.shared_w1 = s1.view(), a.shared_w3 = s3.view(), a.shared_w2 = s2.view();
    a.limit = 2;
    a.y = View<bf16, 2>(y.data() + first * y_stride(), n, shape.d), a.y.stride[0] = y_stride();
    return a;
  }
};

/// ||got - want|| / ||want||; infinite where an element was not written or padding was.
double relative_error(const Problem& p, const std::vector<bf16>& got, const std::vector<bf16>& want) {
  double error = 0, size = 0;
  for (int64_t t = 0; t < p.shape.tokens; ++t)
    for (int64_t i = 0; i < p.y_stride(); ++i) {
      const double a = to_float(got[t * p.y_stride() + i]), b = to_float(want[t * p.y_stride() + i]);
      if (std::isnan(a) != (i >= p.shape.d)) return INFINITY;
      if (i < p.shape.d) error += (a - b) * (a - b), size += b * b;
    }
  return std::sqrt(error / size);
}

int differing(const std::vector<bf16>& got, const std::vector<bf16>& want) {
  int n = 0;
  for (size_t i = 0; i < want.size(); ++i) n += want[i].bits != got[i].bits;
  return n;
}

/// `run` is given the arguments.
void expect_like_reference(Problem& p, const std::function<void(const ExpertsArgs&)>& run) {
  experts_ref(p.args(), {});
  const auto want = p.y;
  p.poison();
  run(p.args());
  EXPECT_LE(relative_error(p, p.y, want), 3e-3)
      << p.shape.tokens << " tokens, " << p.shape.d << " wide, format " << static_cast<int>(p.shape.format);
}
void expect_like_reference(const Shape& s, unsigned seed) {
  Problem p(s, seed);
  expect_like_reference(p, [&](const ExpertsArgs& a) { emulate(a, seed); });
}

TEST(ExpertsEmulated, Mxfp4MatchesTheReference) {
  expect_like_reference({.tokens = 1}, 1);
  expect_like_reference({.tokens = 3, .d = 384, .inner = 256, .choices = 3, .experts = 5}, 2);
  expect_like_reference({.tokens = 2, .d = 640, .inner = 128, .shared = 0}, 3);
  expect_like_reference({.tokens = 5, .d = 4096, .inner = 128, .shared = 0, .choices = 1, .experts = 2}, 15);
}

TEST(ExpertsEmulated, Nvfp4MatchesTheReference) {
  expect_like_reference({.tokens = 3, .d = 384, .format = ExpertFormat::nvfp4}, 4);
  expect_like_reference({.tokens = 17, .shared = 0, .choices = 3, .experts = 8, .format = ExpertFormat::nvfp4}, 14);
  expect_like_reference({.tokens = 50, .d = 384, .choices = 1, .experts = 1, .format = ExpertFormat::nvfp4}, 16);
}

TEST(ExpertsEmulated, Fp8MatchesTheReference) {
  expect_like_reference({.tokens = 2, .d = 384, .inner = 256, .format = ExpertFormat::fp8}, 5);
}

TEST(ExpertsEmulated, SharedExpertMayHaveAnotherWidth) {
  expect_like_reference({.tokens = 2, .inner = 256, .shared = 128}, 6);
  expect_like_reference({.tokens = 2, .inner = 128, .shared = 384}, 7);
}

TEST(ExpertsEmulated, ManyTokensOfFewExpertsFillSeveralTiles) {
  expect_like_reference({.tokens = 19, .d = 128, .choices = 1, .experts = 16}, 8);
  expect_like_reference({.tokens = 40, .d = 128, .choices = 2, .experts = 10}, 9);
  expect_like_reference({.tokens = 70, .d = 128, .choices = 2, .experts = 2}, 10);
  expect_like_reference({.tokens = 29, .d = 768, .shared = 256, .choices = 1, .experts = 1}, 13);
}

std::vector<bf16> row_of(const Problem& p, int64_t t) {
  return {p.y.begin() + t * p.y_stride(), p.y.begin() + t * p.y_stride() + p.shape.d};
}

TEST(ExpertsEmulated, ATokenHasTheSameBitsWhateverTheBatch) {
  Problem p({.tokens = 36, .d = 384, .inner = 128, .choices = 2, .experts = 4}, 11);
  emulate(p.args(20, 1));
  const auto alone = row_of(p, 20);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{16, 8}, {19, 17}, {0, 36}}) {
    p.poison();
    emulate(p.args(first, count), 3);
    EXPECT_EQ(row_of(p, 20), alone) << first << " + " << count;
  }
}

TEST(ExpertsEmulated, WarpsThatStreamGiveTheBitsOfTheOtherKernels) {
  const Shape shapes[] = {{.tokens = 11, .d = 384, .inner = 128, .choices = 3, .experts = 9},
                          {.tokens = 9, .d = 128, .inner = 384, .shared = 128, .choices = 1, .experts = 4},
                          {.tokens = 11, .d = 640, .inner = 128, .shared = 256, .choices = 1, .experts = 3},
                          {.tokens = 20, .d = 256, .inner = 256, .shared = 0, .choices = 2, .experts = 10},
                          {.tokens = 9, .d = 4096, .inner = 128, .shared = 0, .choices = 1, .experts = 3}};
  for (const Shape& s : shapes)
    for (const int blocks : {1, 2}) {
      if (kSanitized && s.d > 1000) continue;
      Problem p(s, 20 + static_cast<unsigned>(s.tokens));
      emulate(p.args(), 1);
      const auto want = p.y;
      p.poison();
      emulate(p.args(), 2, blocks);
      EXPECT_EQ(differing(p.y, want), 0) << s.tokens << " tokens, " << s.d << " wide, " << blocks << " blocks";
    }
}

TEST(ExpertsEmulated, ManyTokensOfAnExpertGiveTheBitsOfTheOtherKernels) {
  const Shape shapes[] = {{.tokens = 20, .d = 256, .inner = 128, .shared = 128, .choices = 2, .experts = 4},
                          {.tokens = 67, .d = 512, .inner = 128, .shared = 256, .choices = 1, .experts = 1},
                          {.tokens = 40, .d = 256, .inner = 384, .shared = 0, .choices = 2, .experts = 3},
                          {.tokens = 18, .d = 2048, .inner = 128, .shared = 0, .choices = 1, .experts = 2}};
  for (const Shape& s : shapes) {
    if (kSanitized && s.d > 1000) continue;
    Problem p(s, 80 + static_cast<unsigned>(s.tokens));
    if (s.tokens == 20) p.expert[7] = -1, p.expert[12] = 99;
    emulate(p.args(), 1);
    const auto want = p.y;
    p.poison();
    ExpertsArgs a = p.args();
    ASSERT_GT(moe::make_plan(a, 8, 3).many_blocks, 0);
    emulate(a, 2, 3);
    EXPECT_EQ(differing(p.y, want), 0) << s.tokens << " tokens, " << s.d << " wide";
  }
}

TEST(ExpertsEmulated, FewTokensInOneLaunchOrTwoGiveTheBitsOfTheOtherKernels) {
  const Shape shapes[] = {{.tokens = 1},
                          {.tokens = 1, .d = 2048, .inner = 128, .shared = 0, .choices = 3, .experts = 5},
                          {.tokens = 2, .d = 128, .inner = 2048, .shared = 128, .choices = 2, .experts = 4},
                          {.tokens = 3, .d = 640, .inner = 128, .shared = 256, .choices = 3, .experts = 6},
                          {.tokens = 5, .d = 128, .inner = 128, .choices = 6, .experts = 9}};
  bool old = false;
  int shares = 0;
  for (const Shape& s : shapes) {
    if (kSanitized && std::max(s.d, s.inner) > 1000) continue;
    Problem p(s, 60 + static_cast<unsigned>(s.tokens));
    emulate(p.args(), 1);
    const auto want = p.y;
    p.poison();
    ExpertsArgs a = p.args();
    a.x_is_old = old = !old;
    shares = shares % 4 + 1;  // blocks that have the same rows of up
    emulate(a, 2, static_cast<int>(std::max(s.inner, s.shared) / moe::kGroupRows) * shares);
    EXPECT_EQ(differing(p.y, want), 0) << s.tokens << " tokens, " << s.d << " wide";
  }
}

TEST(ExpertsEmulated, RoundingToTheGridOfTheCodesGivesTheirValues) {
  std::mt19937 random(3);
  for (int i = 0; i < 300000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    // Everything, and more of where codes lie.
    const auto v = std::bit_cast<float>(i % 2 ? bits : (bits & 0x80FFFFFFu) | (112u + bits % 23) << 23);
    const float want = to_float(to_e4m3(v)), got = moe::round_e4m3(v);
    if (std::isnan(v))
      EXPECT_TRUE(std::isnan(got));
    else
      EXPECT_EQ(got, want) << v;
  }
  for (const float v : {448.0f, 464.0f, 1e30f, INFINITY, 0.0009765625f, 0.00146484375f, 0.0146484375f, 17.0f, 19.0f})
    for (const float signed_v : {v, -v}) EXPECT_EQ(moe::round_e4m3(signed_v), to_float(to_e4m3(signed_v))) << signed_v;
}

TEST(ExpertsEmulated, FewTokensOfARankSkipTheExpertsOfOthers) {
  Problem p({.tokens = 3, .d = 256, .inner = 128, .choices = 2, .experts = 4}, 18);
  p.expert = {1, 2, 0, 99, -1, -1};
  for (auto* m : {&p.w1, &p.w3, &p.w2}) std::fill(m->scale.begin(), m->scale.end(), std::byte{120});
  emulate(p.args());
  const auto want = p.y;
  p.poison();
  emulate(p.args(), 2, 1);
  for (int64_t t = 0; t < 3; ++t)
    EXPECT_EQ(row_of(p, t),
              std::vector<bf16>(want.begin() + t * p.y_stride(), want.begin() + t * p.y_stride() + p.shape.d));
}

TEST(ExpertsEmulated, OneLaunchOfFewTokensEndsTheHalf) {
  for (const CodeOrder order : {CodeOrder::halves, CodeOrder::bytes})
    for (const int64_t tokens : {1, 2}) {
      Problem p({.tokens = tokens, .d = 384, .inner = 128, .choices = 2, .experts = 4}, 19);
      emulate(p.args(), 1, 132, false, order);
      const auto want = p.y;
      p.poison();
      EndProblem half(tokens, p.shape.d);
      ExpertsArgs a = p.args();
      a.end = half.args();
      emulate(a, 1, 132, false, order);
      EXPECT_EQ(differing(p.y, want), 0);
      half.expect_ended(View<const bf16, 2>(a.y));
    }
}

TEST(ExpertsPlan, OneLaunchEndsTheHalfWhereItHasPlaceForIt) {
  const auto plan_of = [](int64_t tokens, int64_t inner, int sms) {
    static bf16 streams;
    ExpertsArgs a;
    a.x.size[0] = tokens, a.x.size[1] = 4096, a.expert.size[1] = 6, a.experts = 256;
    a.w1.rows = a.w3.rows = inner;
    a.shared_w1.codes = View<const e4m3, 2>(reinterpret_cast<const e4m3*>(&a), inner, int64_t{4096});
    a.end.streams.data = &streams;
    return moe::make_plan(a, 8, sms);
  };
  for (const int64_t tokens : {1, 2}) {
    const moe::Plan p = plan_of(tokens, 2048, 132);
    EXPECT_TRUE(p.both && p.ends) << tokens;
    EXPECT_GE(p.few_up.stages, 2);
    EXPECT_LE(p.few_up.bytes, moe::kFewShared);
    EXPECT_GE(p.few_up.bytes - p.few_up.end, mix::kEndBytes);
  }
  EXPECT_FALSE(plan_of(1, 2048, 114).ends);  // two launches
  EXPECT_FALSE(plan_of(3, 2048, 132).ends);
  EXPECT_FALSE(plan_of(64, 2048, 132).ends);
}

TEST(ExpertsPlan, FewTokensTakeTwoLaunchesAsLongAsTheyFit) {
  const auto plan_of = [](int64_t tokens, int64_t d, int64_t inner, int sms = 132) {
    ExpertsArgs a;
    a.x.size[0] = tokens, a.x.size[1] = d, a.expert.size[1] = 6, a.experts = 256;
    a.w1.rows = a.w3.rows = inner;
    a.shared_w1.codes = View<const e4m3, 2>(reinterpret_cast<const e4m3*>(&a), inner, d);
    return moe::make_plan(a, 8, sms);
  };
  for (const int64_t tokens : {1, 2, 3, 4, 5}) {
    // All blocks of one launch must be there at once.
    EXPECT_EQ(plan_of(tokens, 4096, 2048).both, tokens <= 2) << tokens;
    EXPECT_TRUE(!plan_of(tokens, 4096, 2048, 114).both && !plan_of(tokens, 4096, 2048, 127).both) << tokens;
    const moe::Plan p = plan_of(tokens, 4096, 2048);
    EXPECT_TRUE(p.few) << tokens;
    EXPECT_GE(std::min(p.few_up.stages, p.few_down.stages), 2);
    EXPECT_LE(std::max(p.few_up.bytes, p.few_down.bytes), moe::kFewShared);
    EXPECT_EQ(p.up_blocks, 128);
    EXPECT_EQ(plan_of(tokens, 4096, 1024).up_blocks, 128);  // of two ranks: two blocks have the same rows
    EXPECT_EQ(plan_of(tokens, 4096, 512).up_blocks, 128);
  }
  EXPECT_FALSE(plan_of(6, 4096, 2048).few);
  EXPECT_FALSE(plan_of(5, 7168, 4096).few);
}

TEST(ExpertsEmulated, WarpsThatStreamInGroupsMatchTheReference) {
  const Shape shapes[] = {{.tokens = 11, .d = 384, .inner = 128, .choices = 3, .experts = 9},
                          {.tokens = 11, .d = 640, .inner = 128, .shared = 256, .choices = 1, .experts = 3},
                          {.tokens = 20, .d = 256, .inner = 384, .shared = 0, .choices = 2, .experts = 10},
                          {.tokens = 40, .d = 256, .inner = 128, .shared = 256, .choices = 1, .experts = 11}};
  for (const Shape& s : shapes) {
    Problem p(s, 40 + static_cast<unsigned>(s.tokens));
    expect_like_reference(p, [](const ExpertsArgs& a) { emulate(a, 2, 2, true); });
  }
}

moe::Plan plan_of_bytes(ExpertsArgs a, int blocks) {
  a.w1.order = CodeOrder::bytes;
  return moe::make_plan(a, 8, blocks);
}

TEST(ExpertsEmulated, FewTokensOfCodesInTheOrderOfBytesMatchTheReference) {
  const Shape shapes[] = {{.tokens = 1},
                          {.tokens = 2, .d = 256, .inner = 512, .choices = 3, .experts = 5},
                          {.tokens = 3, .d = 768, .inner = 256, .shared = 128, .choices = 2, .experts = 4},
                          {.tokens = 4, .d = 2048, .inner = 256, .shared = 0, .choices = 1, .experts = 3}};
  for (const Shape& s : shapes) {
    if (kSanitized && s.d > 1000) continue;
    Problem p(s, 90 + static_cast<unsigned>(s.tokens));
    const int blocks = static_cast<int>(std::max(s.inner, s.shared) / moe::kGroupRows);
    ASSERT_TRUE(plan_of_bytes(p.args(), blocks).few);
    expect_like_reference(p, [&](const ExpertsArgs& a) { emulate(a, 2, blocks, true, CodeOrder::bytes); });
  }
}

TEST(ExpertsEmulated, TeamsMatchTheReference) {
  const Shape shapes[] = {{.tokens = 5, .d = 512, .inner = 256, .choices = 2, .experts = 6},
                          {.tokens = 11, .d = 512, .inner = 256, .choices = 3, .experts = 9},
                          {.tokens = 20, .d = 256, .inner = 512, .shared = 128, .choices = 1, .experts = 10},
                          {.tokens = 17, .d = 768, .inner = 256, .shared = 0, .choices = 1, .experts = 5},
                          {.tokens = 40, .d = 256, .inner = 256, .shared = 384, .choices = 1, .experts = 3},
                          {.tokens = 5, .d = 256, .inner = 256, .shared = 0, .choices = 7, .experts = 8}};
  for (const Shape& s : shapes) {
    if (kSanitized && s.tokens > 20) continue;
    Problem p(s, 70 + static_cast<unsigned>(s.tokens));
    if (s.tokens == 5) p.expert[3] = -1, p.expert[7] = 99;
    if (s.choices == 7)  // more than are added at once
      p.expert[6] = -1, p.expert[13] = 99;
    const moe::Plan plan = plan_of_bytes(p.args(), 2);
    ASSERT_TRUE(plan.teams);
    ASSERT_EQ(plan.team_tokens, s.tokens == 40 ? 16 : 8);
    expect_like_reference(p, [](const ExpertsArgs& a) { emulate(a, 2, 2, true, CodeOrder::bytes); });
  }
}

TEST(ExpertsEmulated, AnIdThatDoesNotExistTakesPartInNothing) {
  Problem p({.tokens = 3, .choices = 2, .experts = 4}, 12);
  Problem other = p;
  const std::vector<int32_t> ids = {1, 2, 0, 99, -1, -1};
  p.expert = ids;
  for (const auto* m : {&p.w1, &p.w3, &p.w2})  // every expert gets scales that are numbers
    std::fill(const_cast<std::vector<std::byte>&>(m->scale).begin(),
              const_cast<std::vector<std::byte>&>(m->scale).end(), std::byte{120});
  emulate(p.args());
  const auto got = p.y;
  p.poison();
  for (const auto& [t, choices] : {std::pair<int64_t, int64_t>{0, 2}, {1, 1}, {2, 0}}) {
    ExpertsArgs a = p.args(t, 1);
    a.expert.size[1] = choices;
    experts_ref(a, {});
  }
  EXPECT_LE(relative_error(p, got, p.y), 3e-3);
}

TEST(Fp4Order, EveryCodeIsFoundWhereItsFieldIs) {
  for (int position = 0; position < 8; ++position)
    for (uint32_t code = 0; code < 16; ++code)
      for (const uint32_t others : {0u, 0xFFFFFFFFu, 0x5A3C96E1u}) {
        const uint32_t word = (others & ~(15u << 4 * position)) | code << 4 * position;
        const uint32_t field = fp4_fields(order_fp4(word), position % 4) >> (position < 4 ? 0 : 16) & 0xFFFF;
        EXPECT_EQ(field, (code & 7) << 6 | (code >> 3) << 15) << position << " " << code;
      }
}

TEST(ExpertsEmulated, TheReferenceReadsBothOrdersOfCodes) {
  Problem p({.tokens = 3, .choices = 2, .experts = 4}, 17);
  experts_ref(p.args(), {});
  const auto want = p.y;
  p.poison();
  ExpertsArgs a = p.args();
  std::vector<std::byte> ordered[3];
  order(a.w1, a.experts, ordered[0]), order(a.w3, a.experts, ordered[1]), order(a.w2, a.experts, ordered[2]);
  experts_ref(a, {});
  EXPECT_EQ(relative_error(p, p.y, want), 0);
}

TEST(ExpertsPlan, TheNumberOfTokensDoesNotChangeHowSumsAreDivided) {
  for (const int64_t tokens : {1, 8, 17, 64, 300, 2048})
    for (const auto& [d, inner] : {std::pair<int64_t, int64_t>{128, 128}, {256, 128}, {4096, 2048}, {7168, 3072}}) {
      Shape s{.tokens = 1, .d = 128, .choices = 6, .experts = 256};
      ExpertsArgs a;
      a.x.size[0] = tokens, a.x.size[1] = d, a.expert.size[1] = s.choices, a.experts = s.experts;
      a.w1.rows = a.w3.rows = inner;
      a.shared_w1.codes = View<const e4m3, 2>(reinterpret_cast<const e4m3*>(&s), inner, d);
      const moe::Plan p = moe::make_plan(a);
      EXPECT_EQ(1 << p.log2_up_slices, d < 4096 ? 1 : 4);
      EXPECT_EQ(1 << p.log2_down_slices, inner < 2048 ? 1 : 2);
      EXPECT_LE(std::max(p.up_shared, p.down_shared), 99u * 1024);
      EXPECT_LE(p.up_threads(), 256);
      // Every expert may end with a tile that is not full.
      const int64_t touched = std::min<int64_t>(256, 6 * tokens);
      EXPECT_GE(p.most_tiles - p.shared_tiles, (6 * tokens - touched) / p.tile_tokens() + touched -
                                                   (touched * (p.tile_tokens() - 1) / p.tile_tokens() + 1));
      EXPECT_LE(p.most_tiles, p.shared_tiles + 6 * tokens);
    }
}

}  // namespace
}  // namespace fathom::ops
