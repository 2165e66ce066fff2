#include "dist/communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

namespace fathom::dist {
namespace {

std::vector<std::unique_ptr<Communicator>> ranks_of(int size) {
  const std::vector<std::shared_ptr<ops::ComputeDevice>> devices(static_cast<size_t>(size), ops::host_device());
  return connect(devices);
}

/// `work(communicator)` on a thread for each rank.
template <typename Work>
void on_all(const std::vector<std::unique_ptr<Communicator>>& ranks, const Work& work) {
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&] { work(*rank); });
  for (auto& t : threads) t.join();
}

template <typename T>
T number(std::mt19937& rng) {
  const float v = std::normal_distribution<float>(0, 3)(rng);
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(v);
  else
    return v;
}

float value(float v) {
  return v;
}
float value(bf16 v) {
  return to_float(v);
}

/// Several sums one behind the other, of sizes that grow and shrink; every rank must have the bits of a sum in the
/// order of the ranks.
template <typename T>
void sums_are_exact(int size) {
  const auto ranks = ranks_of(size);
  const std::vector<std::array<int64_t, 2>> shapes = {{1, 1}, {3, 7}, {1, 4096}, {17, 33}, {0, 128}, {64, 256}, {2, 5}};
  std::vector<std::vector<std::vector<bf16>>> results(static_cast<size_t>(size));
  on_all(ranks, [&](Communicator& c) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      const auto [tokens, width] = shapes[s];
      std::mt19937 rng(static_cast<unsigned>(100 * s) + static_cast<unsigned>(c.rank()));
      std::vector<T> part(static_cast<size_t>(tokens * width));
      for (T& v : part) v = number<T>(rng);
      std::vector<bf16> sum(part.size());
      if constexpr (std::is_same_v<T, bf16>) {  // in place
        sum = part;
        const View<bf16, 2> both(sum.data(), tokens, width);
        c.all_reduce(View<const bf16, 2>(both), both);
      } else {
        c.all_reduce(View<const T, 2>(part.data(), tokens, width), View<bf16, 2>(sum.data(), tokens, width));
      }
      results[static_cast<size_t>(c.rank())].push_back(sum);
    }
  });
  for (size_t s = 0; s < shapes.size(); ++s) {
    const size_t count = static_cast<size_t>(shapes[s][0] * shapes[s][1]);
    std::vector<float> want(count, 0.0f);
    for (int r = 0; r < size; ++r) {
      std::mt19937 rng(static_cast<unsigned>(100 * s) + static_cast<unsigned>(r));
      for (float& v : want) v += value(number<T>(rng));
    }
    for (const auto& rank : results) {
      ASSERT_EQ(rank[s].size(), count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(rank[s][i].bits, to_bf16(want[i]).bits) << "shape " << s;
    }
  }
}

TEST(Communicator, SumsInTheOrderOfTheRanksOnOneToFourRanks) {
  for (int size = 1; size <= 4; ++size) sums_are_exact<float>(size), sums_are_exact<bf16>(size);
}

TEST(Communicator, GathersColumns) {
  for (int size = 1; size <= 4; ++size) {
    const auto ranks = ranks_of(size);
    on_all(ranks, [&](Communicator& c) {
      for (int64_t rows : {1, 5, 0, 2}) {
        constexpr int64_t kColumns = 13;
        std::vector<float> part(static_cast<size_t>(rows * kColumns)),
            full(part.size() * static_cast<size_t>(size), -1);
        for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(1000 * c.rank()) + static_cast<float>(i);
        c.all_gather(View<const float, 2>(part.data(), rows, kColumns),
                     View<float, 2>(full.data(), rows, kColumns * size));
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t i = 0; i < kColumns * size; ++i)
            EXPECT_EQ(full[static_cast<size_t>(t * kColumns * size + i)],
                      static_cast<float>(1000 * (i / kColumns) + t * kColumns + i % kColumns));
      }
    });
  }
}

TEST(Communicator, ARankThatFailsLetsNobodyWait) {
  for (int size = 2; size <= 4; ++size) {
    const auto ranks = ranks_of(size);
    const int bad = size - 1;
    std::atomic<int> failed = 0;
    on_all(ranks, [&](Communicator& c) {
      float part = 1;
      bf16 sum{};
      const View<const float, 2> in(&part, 1, 1);
      const View<bf16, 2> out(&sum, 1, 1);
      c.all_reduce(in, out);
      if (c.rank() == bad) return c.fail("the disk is gone");
      try {
        c.all_reduce(in, out);
      } catch (const Failed& e) {
        EXPECT_EQ(std::string(e.what()), fmt::format("rank {} of {} failed: the disk is gone", bad, size));
        ++failed;
      }
      EXPECT_THROW(c.barrier(), Failed);  // and at once from now on
    });
    EXPECT_EQ(failed, size - 1);
    ASSERT_TRUE(ranks[0]->failure());
    EXPECT_EQ(ranks[0]->failure()->rank, bad);
  }
}

TEST(Communicator, TheFirstFailureStaysAndResetMakesTheGroupUsableAgain) {
  const auto ranks = ranks_of(3);
  ranks[2]->fail("first");
  ranks[0]->fail("second");
  EXPECT_EQ(ranks[1]->failure()->what, "first");
  for (const auto& rank : ranks) rank->reset();
  EXPECT_FALSE(ranks[1]->failure());
  on_all(ranks, [&](Communicator& c) {
    float part = static_cast<float>(c.rank() + 1);
    bf16 sum{};
    c.all_reduce(View<const float, 2>(&part, 1, 1), View<bf16, 2>(&sum, 1, 1));
    EXPECT_EQ(to_float(sum), 6.0f);
  });
}

}  // namespace
}  // namespace fathom::dist
