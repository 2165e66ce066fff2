// A half that an op ends, with random streams: what it leaves must be what residual_mix makes of the same y.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/gpu_emulator.h"
#include "ops/residual_mix/end_kernel.cuh"

namespace fathom::ops {

struct EndProblem {
  int64_t tokens, width;
  std::vector<bf16> before, streams;
  std::vector<device::Float4> post, comb, fn, sums;  // at multiples of 16 bytes

  EndProblem(int64_t t, int64_t d) : tokens(t), width(d) {
    std::mt19937 random(static_cast<unsigned>(t + d));
    std::normal_distribution<float> normal;
    const auto numbers = [&](auto& v, int64_t n) {
      for (int64_t i = 0; i < n / 4; ++i) v.push_back({normal(random), normal(random), normal(random), normal(random)});
    };
    for (int64_t i = 0; i < t * kStreams * d; ++i)
      before.push_back(to_bf16(std::ldexp(normal(random), static_cast<int>(random() % 16) - 8)));
    numbers(post, t * kStreams), numbers(comb, t * 16), numbers(fn, kMixes * kStreams * d);
    streams = before;
    sums.assign(static_cast<size_t>(t * slices() * kSumPitch / 4), {NAN, NAN, NAN, NAN});
  }
  int64_t slices() const { return width / kSumChannels; }
  HalfEnd args() {
    return {View<bf16, 3>(streams.data(), tokens, int64_t{kStreams}, width),
            View<const float, 2>(&post[0].x, tokens, int64_t{kStreams}),
            View<const float, 3>(&comb[0].x, tokens, int64_t{kStreams}, int64_t{kStreams}),
            View<const float, 2>(&fn[0].x, int64_t{kMixes}, kStreams * width),
            View<float, 3>(&sums[0].x, tokens, slices(), int64_t{kSumPitch})};
  }
  /// Compares what the op left with what few_partial_block() makes of `y`, bit by bit.
  void expect_ended(View<const bf16, 2> y) {
    std::vector<bf16> want = before;
    std::vector<float> partial(static_cast<size_t>(tokens * slices() * kSumPitch), NAN);
    mix::Params p;
    p.streams = View<bf16, 3>(want.data(), tokens, int64_t{kStreams}, width), p.y = y;
    p.post = &post[0].x, p.comb = &comb[0].x, p.post_stride = kStreams, p.comb_stride = 16;
    p.fn = args().fn, p.tokens = static_cast<int32_t>(tokens), p.slices = static_cast<int32_t>(slices());
    p.partial = partial.data();
    device::emulator::run_grid(p.slices, static_cast<int>(tokens), 1, 32 * mix::kFewWarps, 0, false, 1,
                               [&](std::byte*) { mix::few_partial_block(p); });
    EXPECT_EQ(std::memcmp(want.data(), streams.data(), want.size() * sizeof(bf16)), 0);
    EXPECT_NE(std::memcmp(before.data(), streams.data(), want.size() * sizeof(bf16)), 0);
    EXPECT_EQ(std::memcmp(partial.data(), &sums[0].x, partial.size() * sizeof(float)), 0);
  }
};

}  // namespace fathom::ops
