#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

namespace fathom {
namespace {

class Threads : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_thread_count(GetParam()); }
};

TEST_P(Threads, EveryIndexIsVisitedOnceInPiecesThatDoNotDependOnTheThreads) {
  for (int64_t n : {0, 1, 7, 64, 1000}) {
    for (int64_t grain : {0, 1, 13, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        const int64_t most = std::max<int64_t>(1, grain);
        EXPECT_EQ(begin % most, 0);
        EXPECT_EQ(end, std::min(n, begin + most));
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; })) << n << " " << grain;
    }
  }
}

TEST_P(Threads, AnExceptionReachesTheCallerAndNestedCallsWork) {
  EXPECT_THROW(parallel_for(100, 1,
                            [](int64_t begin, int64_t) {
                              if (begin == 42) throw std::runtime_error("42");
                            }),
               std::runtime_error);
  std::atomic<int> count = 0;
  parallel_for(10, 1, [&](int64_t, int64_t) { parallel_for(10, 1, [&](int64_t, int64_t) { ++count; }); });
  EXPECT_EQ(count, 100);
}

TEST_P(Threads, AsManyThreadsWorkAtATimeAsWereAskedFor) {
  EXPECT_EQ(thread_count(), GetParam());
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> here = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  parallel_for(GetParam(), 1, [&](int64_t, int64_t) {
    {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    ++here;  // waits until all are here: that takes as many threads as there are pieces
    while (here < GetParam() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  EXPECT_EQ(seen.size(), static_cast<size_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, testing::Values(1, 2, 5));

}  // namespace
}  // namespace fathom
