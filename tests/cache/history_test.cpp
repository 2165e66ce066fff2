// Long and winding histories: whatever was forked, rolled back and fed again, a sequence's logits are those of its
// tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "cache/model_support.h"

namespace fathom::test {
namespace {

// Sanitizers make the model about twenty times slower; they get the same tests on a tenth of the work.
#ifdef FATHOM_SANITIZED
constexpr size_t kShare = 10;
#else
constexpr size_t kShare = 1;
#endif

std::vector<int32_t> random_tokens(std::mt19937& rng, size_t n) {
  std::vector<int32_t> out(n);
  for (auto& t : out) t = static_cast<int32_t>(rng() % 2000) + 3;
  return out;
}

struct Branch {
  SequenceId id;
  std::vector<int32_t> tokens;
};

/// Takes the branch back to `length`, feeding again what the cache asks for.
void roll_back(Runner& run, Branch& b, int64_t length) {
  const int64_t from = run.cache.rollback(b.id, length);
  b.tokens.resize(static_cast<size_t>(length));
  if (from < length) run.feed(b.id, std::span(b.tokens).subspan(static_cast<size_t>(from)), WantLogits::none);
  ASSERT_EQ(run.cache.length(b.id), length);
}

class History : public testing::TestWithParam<int> {};

TEST_P(History, OfForksRollbacksAndChunksLeavesNoTrace) {
  std::mt19937 rng(static_cast<uint32_t>(GetParam()));
  const int64_t keep_window = std::array<int64_t, 3>{-1, 0, 100}[rng() % 3];
  Runner run("cpu", 4096, 5, keep_window);
  std::vector<Branch> alive = {{run.cache.create(), {}}};
  const auto grow = [&](Branch& b, size_t n) {
    const auto more = random_tokens(rng, n);
    run.feed(b.id, more, WantLogits::none);
    b.tokens.insert(b.tokens.end(), more.begin(), more.end());
  };
  grow(alive[0], 1 + rng() % 300);
  for (int step = 0; step < 12; ++step) {
    Branch& b = alive[rng() % alive.size()];
    const uint32_t what = rng() % 4;
    if (what == 0 && alive.size() < 4) {
      const Branch copy{run.cache.fork(b.id), b.tokens};
      alive.push_back(copy);
    } else if (what == 1) {
      const auto length = static_cast<int64_t>(b.tokens.size());
      const int64_t back = rng() % 2 ? rng() % 12 : rng() % 200;
      roll_back(run, b, std::max<int64_t>(0, length - back));
    } else if (b.tokens.size() < 600) {
      grow(b, what == 2 ? 1 + rng() % 6 : 1 + rng() % 90);
    }
    run.cache.check();
  }
  for (Branch& b : alive) {
    const int32_t next[] = {7};
    const auto got = run.feed(b.id, next).back();
    b.tokens.push_back(7);
    const SequenceId fresh = run.cache.create();
    EXPECT_EQ(got, run.feed(fresh, b.tokens).back()) << b.tokens.size() << " tokens, window kept " << keep_window;
    run.cache.release(fresh);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, History, testing::Range(1, kShare > 1 ? 3 : 13));

TEST(LongContext, SixteenThousandTokensGiveTheSameBitsInAnyChunks) {
  std::mt19937 rng(16);
  const auto tokens = random_tokens(rng, 16000 / kShare);
  constexpr size_t kCommon = 13000 / kShare, kPart = 2600 / kShare;
  Runner run("cpu", 20480, 2);
  const SequenceId trunk = run.cache.create();
  for (size_t at = 0; at < kCommon; at += kPart)
    run.feed(trunk, std::span(tokens).subspan(at, kPart), WantLogits::none);
  std::vector<std::vector<float>> results[2];
  const SequenceId branches[] = {run.cache.fork(trunk), trunk};
  const size_t chunks[] = {3000 / kShare, 500 / kShare};
  for (size_t i = 0; i < 2; ++i) {
    for (size_t at = kCommon; at < tokens.size(); at += chunks[i])
      results[i].push_back(run.feed(branches[i], std::span(tokens).subspan(at, chunks[i])).back());
    results[i].erase(results[i].begin(), results[i].end() - 1);
    for (int32_t step = 0; step < 5; ++step) {  // over the border of a ratio-4 entry
      const int32_t next[] = {step + 3};
      results[i].push_back(run.feed(branches[i], next).at(0));
    }
    ASSERT_EQ(run.cache.length(branches[i]), static_cast<int64_t>(tokens.size()) + 5);
  }
  EXPECT_EQ(results[0], results[1]);
  const auto [low, high] = std::minmax_element(results[0][0].begin(), results[0][0].end());
  EXPECT_GT(*high, *low + 1) << "no flat or broken logits";
}

}  // namespace
}  // namespace fathom::test
