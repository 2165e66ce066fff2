// The router of few tokens in one launch, run on the host by the emulator: it has the bits of product and choice apart,
// which the lab judges.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ops/gpu_emulator.h"
#include "ops/route/few_kernel.cuh"

namespace fathom::ops {

namespace {

constexpr DeviceInfo kHopper{Backend::cuda, 90, 132, 232448, int64_t{50} << 20};

struct Problem {
  static constexpr int64_t kWidth = 1024, kChosen = 6, kIds = 5;
  int64_t tokens, experts;
  std::vector<bf16> x, gate;
  std::vector<float> bias, scores, weight;
  std::vector<int32_t> table, ids, expert;

  Problem(int64_t t, int64_t e, unsigned seed)
      : tokens(t), experts(e), scores(t * e), weight(t * kChosen), expert(t * kChosen) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < t * kWidth; ++i) x.push_back(to_bf16(normal(random)));
    for (int64_t i = 0; i < e * kWidth; ++i) gate.push_back(to_bf16(normal(random) * 0.03f));
    for (int64_t i = 0; i < e; ++i) bias.push_back(normal(random) * 0.3f);
    for (int64_t i = 0; i < kIds * kChosen; ++i) table.push_back(static_cast<int32_t>((i * 7 + i / kChosen) % e));
    for (int64_t i = 0; i < t; ++i) ids.push_back(static_cast<int32_t>((i + 3) % kIds));
  }
  RouteArgs args(bool hash) {
    RouteArgs a;
    a.x = View<const bf16, 2>(x.data(), tokens, kWidth), a.gate = View<const bf16, 2>(gate.data(), experts, kWidth);
    if (hash) {
      a.table = View<const int32_t, 2>(table.data(), kIds, kChosen);
      a.ids = View<const int32_t, 1>(ids.data(), tokens);
    } else {
      a.bias = View<const float, 1>(bias.data(), experts);
    }
    a.route_scale = 1.5f;
    a.scores = View<float, 2>(scores.data(), tokens, experts);
    a.expert = View<int32_t, 2>(expert.data(), tokens, kChosen);
    a.weight = View<float, 2>(weight.data(), tokens, kChosen);
    return a;
  }
  void forget() { std::ranges::fill(scores, -7.0f), std::ranges::fill(weight, -7.0f), std::ranges::fill(expert, -7); }
};

void compare(Problem& problem, bool hash) {
  const RouteArgs a = problem.args(hash);
  route::FewParams p;
  gemm::Plan plan;
  ASSERT_TRUE(route::lay_out(a, kHopper, p, plan));
  const auto grid = [&](int x, int y, size_t bytes, const auto& program) {
    device::emulator::run_grid(x, y, 1, route::kThreads, bytes, x == plan.cluster, 5, program);
  };
  const int rows = static_cast<int>(p.blocks) / plan.cluster;
  problem.forget();
  grid(plan.cluster, rows, plan.shared_bytes,
       [&](std::byte* shared) { gemm::wide_block<gemm::Math::bf16_wide, 1>(p.product, shared); });
  grid(static_cast<int>(problem.tokens), 1, sizeof(route::Shared),
       [&](std::byte* shared) { route::route_block(a, *reinterpret_cast<route::Shared*>(shared)); });
  const Problem apart = problem;
  uint32_t arrivals = 0;
  p.arrivals = &arrivals;
  for (int run = 0; run < 2; ++run) {
    problem.forget();
    grid(plan.cluster, rows, std::max(plan.shared_bytes, sizeof(route::Shared)),
         [&](std::byte* shared) { route::few_block(p, shared); });
    EXPECT_EQ(arrivals, 0u);
    EXPECT_EQ(apart.expert, problem.expert);
    EXPECT_FALSE(std::memcmp(apart.weight.data(), problem.weight.data(), apart.weight.size() * sizeof(float)));
    EXPECT_FALSE(std::memcmp(apart.scores.data(), problem.scores.data(), apart.scores.size() * sizeof(float)));
  }
}

TEST(RouteEmulated, OneLaunchChoosesAsTwoDo) {
  Problem one(1, 40, 1), two(2, 288, 2);
  for (const bool hash : {false, true}) compare(one, hash), compare(two, hash);
}

TEST(RouteEmulated, ManyTokensTakeTwoLaunches) {
  Problem three(3, 40, 1);
  route::FewParams p;
  gemm::Plan plan;
  EXPECT_FALSE(route::lay_out(three.args(false), kHopper, p, plan));
}

}  // namespace
}  // namespace fathom::ops
