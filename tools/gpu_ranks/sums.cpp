// Sums and gathers over two GPUs: their bits, and what happens when a rank is late, fails or never comes.
#include <bit>
#include <cstdio>
#include <random>

#include "support.h"

namespace fathom::gpu_ranks {
namespace {

float value(float v) {
  return v;
}
float value(bf16 v) {
  return to_float(v);
}

/// Zeros of either sign are among the numbers, +0 in whole words, which peer memory sends in another form.
template <typename T>
std::vector<T> random_part(int64_t count, size_t shape, size_t rank) {
  std::mt19937 rng(static_cast<unsigned>(100 * shape + rank));
  std::normal_distribution<float> normal(0, 3);
  std::vector<T> part(static_cast<size_t>(count));
  for (size_t i = 0; i < part.size(); ++i) {
    const float drawn = normal(rng), v = i % 7 == 6 ? -0.0f : i * sizeof(T) / 4 % 5 == 4 ? 0.0f : drawn;
    if constexpr (std::is_same_v<T, bf16>)
      part[i] = to_bf16(v);
    else
      part[i] = v;
  }
  return part;
}

/// Sums of sizes that grow and shrink, the last ones longer than a message; each must have the bits of a sum in the
/// order of the ranks.
template <typename T>
void sums_are_exact(const Devices& devices, const Ranks& ranks) {
  const std::array<int64_t, 2> shapes[] = {{1, 4096}, {3, 4096}, {64, 4096},  {2, 8},    {17, 128},
                                           {1, 4},    {0, 128},  {300, 4096}, {1, 4096}, {33, 4096}};
  std::vector<std::vector<std::vector<bf16>>> got(devices.size());
  on_all(devices, [&](size_t r) {
    for (size_t s = 0; s < std::size(shapes); ++s) {
      const auto [rows, columns] = shapes[s];
      const Numbers<T> part(*devices[r], rows, columns, random_part<T>(rows * columns, s, r));
      const Numbers<bf16> sum(*devices[r], rows, columns);
      devices[r]->synchronize("clearing memory");
      ranks[r]->all_reduce(View<const T, 2>(part.view()), sum.view());
      devices[r]->synchronize("a sum");
      got[r].push_back(sum.values());
      ranks[r]->barrier();
    }
  });
  for (size_t s = 0; s < std::size(shapes); ++s) {
    const int64_t count = shapes[s][0] * shapes[s][1];
    std::vector<float> want(static_cast<size_t>(count));
    for (size_t r = 0; r < devices.size(); ++r) {
      const auto part = random_part<T>(count, s, r);
      for (size_t i = 0; i < want.size(); ++i) want[i] += value(part[i]);
    }
    for (size_t r = 0; r < devices.size(); ++r)
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_EQ(got[r][s][i].bits, to_bf16(want[i]).bits) << "rank " << r << ", shape " << s << ", number " << i;
  }
}

TEST(PeerMemory, SumsHaveTheBitsOfASumInTheOrderOfTheRanks) {
  const auto ranks = dist::connect_peers(two_gpus());
  sums_are_exact<float>(two_gpus(), ranks), sums_are_exact<bf16>(two_gpus(), ranks);
}

TEST(Nccl, SumsHaveTheBitsOfASumInTheOrderOfTheRanks) {
  const auto ranks = dist::connect_nccl(two_gpus());
  sums_are_exact<float>(two_gpus(), ranks), sums_are_exact<bf16>(two_gpus(), ranks);
}

/// Every rank has the parts of all, side by side: their bits, but that -0 may have become +0, on all ranks alike. Rows
/// of 2 and 4 numbers, and more than a message.
void gathers_are_exact(const Devices& devices, const Ranks& ranks) {
  constexpr int64_t kRows = 300, kWidths[] = {2, 4, 4096, 2};
  const auto part_of = [&](size_t s, size_t rank) {
    auto part = random_part<float>(kRows * kWidths[s], 50 + s, rank);
    for (size_t i = 10; i < part.size(); i += 11)
      part[i] = std::bit_cast<float>(0xFFC00000u + static_cast<uint32_t>(i));
    return part;
  };
  std::vector<std::vector<std::vector<float>>> got(devices.size());
  on_all(devices, [&](size_t r) {
    for (size_t s = 0; s < std::size(kWidths); ++s) {
      const Numbers<float> part(*devices[r], kRows, kWidths[s], part_of(s, r));
      const Numbers<float> full(*devices[r], kRows, kWidths[s] * static_cast<int64_t>(devices.size()));
      devices[r]->synchronize("clearing memory");
      ranks[r]->all_gather(View<const float, 2>(part.view()), full.view());
      devices[r]->synchronize("a gather");
      got[r].push_back(full.values());
      ranks[r]->barrier();
    }
  });
  for (size_t r = 0; r < devices.size(); ++r) ASSERT_EQ(got[r].size(), std::size(kWidths));
  for (size_t s = 0; s < std::size(kWidths); ++s)
    for (size_t from = 0; from < devices.size(); ++from) {
      const auto part = part_of(s, from);
      const auto width = static_cast<size_t>(kWidths[s]);
      for (size_t i = 0; i < part.size(); ++i) {
        const size_t at = (i / width * devices.size() + from) * width + i % width;
        const auto sent = std::bit_cast<uint32_t>(part[i]), first = std::bit_cast<uint32_t>(got[0][s][at]);
        ASSERT_TRUE(first == sent || (sent == 0x80000000u && first == 0))
            << std::hex << first << " of " << sent << std::dec << ", rank " << from << ", width " << width << ", " << i;
        for (size_t r = 1; r < devices.size(); ++r)
          ASSERT_EQ(std::bit_cast<uint32_t>(got[r][s][at]), first) << "rank " << r << ", width " << width << ", " << i;
      }
    }
}

TEST(PeerMemory, GathersHaveTheBitsOfEveryRank) {
  const auto ranks = dist::connect_peers(two_gpus());
  gathers_are_exact(two_gpus(), ranks);
}

TEST(Nccl, GathersHaveTheBitsOfEveryRank) {
  const auto ranks = dist::connect_nccl(two_gpus());
  gathers_are_exact(two_gpus(), ranks);
}

/// 64 x 4096 fp32, as the experts of a step; `before(rank)` on the rank's thread first. Milliseconds from the last
/// rank's launch to the end of the first rank's sum.
template <typename Before>
double sum_behind(const Devices& devices, const Ranks& ranks, const Before& before) {
  Clock::time_point launched[2], ended;
  on_all(devices, [&](size_t r) {
    const Numbers<float> part(*devices[r], 64, 4096);
    const Numbers<bf16> sum(*devices[r], 64, 4096);
    devices[r]->synchronize("clearing memory");
    ranks[r]->barrier();
    before(r);
    launched[r] = Clock::now();
    ranks[r]->all_reduce(View<const float, 2>(part.view()), sum.view());
    devices[r]->synchronize("a sum");
    if (r == 0) ended = Clock::now();
    ranks[r]->barrier();
  });
  return std::chrono::duration<double, std::milli>(ended - std::max(launched[0], launched[1])).count();
}

TEST(PeerMemory, ARankThatIsLateCostsItsDelayAndNoMore) {
  const auto ranks = dist::connect_peers(two_gpus());
  for (const int late : {0, 1, 3, 10, 100}) {
    double worst = 0;
    for (int again = 0; again < 20 && again * late < 300; ++again)
      worst = std::max(worst, sum_behind(two_gpus(), ranks, [&](size_t r) {
                         if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(late));
                       }));
    std::printf("a rank %d ms late: the other's sum ends %.3f ms behind it at most\n", late, worst);
    EXPECT_FALSE(ranks[0]->failure());
  }
}

/// Rank 1 fails after 50 ms, while rank 0 does `work(part, sum)` on 64 x 4096 fp32 and bf16.
template <typename Work>
void fail_during(const Ranks& ranks, const Work& work) {
  on_all(two_gpus(), [&](size_t r) {
    if (r == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return ranks[1]->fail("the disk is gone");
    }
    const Numbers<float> part(*two_gpus()[0], 64, 4096);
    const Numbers<bf16> sum(*two_gpus()[0], 64, 4096);
    work(View<const float, 2>(part.view()), sum.view());
  });
}

TEST(PeerMemory, ARankThatFailsLetsTheOtherGoAndTheGroupIsUsableAgain) {
  const auto ranks = dist::connect_peers(two_gpus());
  for (int round = 0; round < 3; ++round) {
    double waited = 0;
    fail_during(ranks, [&](View<const float, 2> part, View<bf16, 2> sum) {
      const auto start = Clock::now();
      for (int i = 0; i < 86; ++i) ranks[0]->all_reduce(part, sum);
      two_gpus()[0]->synchronize("sums that end early");
      waited = milliseconds_since(start);
    });
    std::printf("86 sums of a rank whose peer failed after 50 ms ended after %.0f ms\n", waited);
    EXPECT_LT(waited, 5000);  // patience would be 10 s for the first alone
    ASSERT_TRUE(ranks[0]->failure());
    EXPECT_EQ(ranks[0]->failure()->rank, 1);
    EXPECT_EQ(ranks[0]->failure()->what, "the disk is gone");
    for (const auto& rank : ranks) rank->reset();
    EXPECT_FALSE(ranks[0]->failure());
    sums_are_exact<float>(two_gpus(), ranks);
  }
}

TEST(PeerMemory, ARankThatNeverComesCountsAsFailedAfterTenSeconds) {
  const auto ranks = dist::connect_peers(two_gpus());
  const Numbers<float> part(*two_gpus()[0], 64, 4096);
  const Numbers<bf16> sum(*two_gpus()[0], 64, 4096);
  const auto start = Clock::now();
  ranks[0]->all_reduce(View<const float, 2>(part.view()), sum.view());
  two_gpus()[0]->synchronize("a sum that nobody joins");
  std::printf("gave up after %.2f s\n", milliseconds_since(start) / 1e3);
  EXPECT_GT(milliseconds_since(start), 9e3);
  ASSERT_TRUE(ranks[0]->failure());
  EXPECT_EQ(ranks[0]->failure()->what, "a sum waited 10 s for the other ranks");
  for (const auto& rank : ranks) rank->reset();
  sums_are_exact<float>(two_gpus(), ranks);
}

TEST(Nccl, ARankThatFailsLetsTheOtherGoAndLaterSumsSayWhy) {
  const auto ranks = dist::connect_nccl(two_gpus());
  sums_are_exact<float>(two_gpus(), ranks);
  fail_during(ranks, [&](View<const float, 2> part, View<bf16, 2> sum) {
    try {
      ranks[0]->all_reduce(part, sum);
      two_gpus()[0]->synchronize("a sum that ends early");
    } catch (const Error& e) {
      std::printf("the waiting rank was told: %s\n", e.what());
    }
    ASSERT_TRUE(ranks[0]->failure());
    EXPECT_EQ(ranks[0]->failure()->what, "the disk is gone");
  });
  for (const auto& rank : ranks) rank->reset();
  EXPECT_TRUE(ranks[0]->failure());  // what was aborted stays so
  const Numbers<float> part(*two_gpus()[0], 1, 4096);
  const Numbers<bf16> sum(*two_gpus()[0], 1, 4096);
  EXPECT_THROW(ranks[0]->all_reduce(View<const float, 2>(part.view()), sum.view()), dist::Failed);
}

}  // namespace
}  // namespace fathom::gpu_ranks
