// The kernel that begins the MTP block, run on the host by the emulator, against the reference bit by bit.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ops/gpu_emulator.h"

#include "ops/draft/draft_kernel.cuh"

namespace fathom::ops {

void stream_join_ref(const StreamJoinArgs& a, const Launch&);

namespace {

TEST(StreamJoinEmulated, GivesTheBitsOfTheReferenceForAnyRows) {
  std::mt19937 rng(8);
  std::normal_distribution<float> normal;
  for (const int64_t d : {8, 128, 1032, 2048}) {
    const int64_t tokens = 1 + static_cast<int64_t>(rng() % 5), count = 1 + static_cast<int64_t>(rng() % 7);
    std::vector<bf16> token(static_cast<size_t>(tokens * d)), stream(token.size() * 4);
    for (auto* values : {&token, &stream})
      for (bf16& v : *values) v = to_bf16(normal(rng) * std::exp2(static_cast<float>(rng() % 7)));
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(tokens)));
    std::vector<bf16> want(static_cast<size_t>(4 * count * d)), got(want.size(), to_bf16(NAN));
    StreamJoinArgs a;
    a.token = View<const bf16, 2>(token.data(), tokens, d);
    a.stream = View<const bf16, 3>(stream.data(), tokens, 4, d);
    a.rows = View<const int32_t, 1>(rows.data(), count);
    a.streams = View<bf16, 3>(want.data(), count, 4, d);
    stream_join_ref(a, {});
    a.streams.data = got.data();
    const auto parts = static_cast<int>((d + draft::kBlockChannels - 1) / draft::kBlockChannels);
    device::emulator::run_grid(parts, static_cast<int>(count), 4, draft::kThreads, 0, false, 7,
                               [&](std::byte*) { draft::join_block(a); });
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(to_float(want[i]), to_float(got[i])) << "d " << d << " at " << i;
  }
}

}  // namespace
}  // namespace fathom::ops
