// Cache books and exactness: chunking, batching, forks and rollbacks never change a result.
#include "cache/cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <random>

#include "base/error.h"
#include "cache/model_support.h"

namespace fathom::test {
namespace {

std::vector<int32_t> random_tokens(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(n);
  for (auto& t : out) t = static_cast<int32_t>(rng() % 2000) + 3;
  return out;
}

/// Logits after feeding `tokens` in chunks of `chunk`, of every token.
std::vector<std::vector<float>> feed_in_chunks(Runner& run, SequenceId id, std::span<const int32_t> tokens,
                                               size_t chunk) {
  std::vector<std::vector<float>> all;
  for (size_t at = 0; at < tokens.size(); at += chunk)
    for (auto& row : run.feed(id, tokens.subspan(at, std::min(chunk, tokens.size() - at)), WantLogits::all))
      all.push_back(std::move(row));
  return all;
}

class Chunks : public testing::TestWithParam<size_t> {};

TEST_P(Chunks, ChunkedPrefillAndDecodeGiveTheSameBits) {
  const auto tokens = random_tokens(300, 1);
  Runner run("cpu");
  const auto whole = feed_in_chunks(run, run.cache.create(), tokens, tokens.size());
  const auto cut = feed_in_chunks(run, run.cache.create(), tokens, GetParam());
  ASSERT_EQ(whole.size(), cut.size());
  for (size_t t = 0; t < whole.size(); ++t) ASSERT_EQ(whole[t], cut[t]) << "token " << t;
}

INSTANTIATE_TEST_SUITE_P(Sizes, Chunks, testing::Values(1, 3, 64, 127, 128, 129, 299));

TEST(Batch, SequencesOfDifferentLengthsGetTheBitsTheyGetAlone) {
  Runner run("cpu");
  const std::vector<std::vector<int32_t>> prompts = {random_tokens(1, 2), random_tokens(133, 3), random_tokens(260, 4)};
  std::vector<std::vector<float>> alone;
  for (const auto& p : prompts) {
    const SequenceId id = run.cache.create();
    alone.push_back(run.feed(id, p)[0]);
    run.cache.release(id);
  }
  std::vector<SegmentRequest> requests;
  for (const auto& p : prompts) {
    const SequenceId id = run.cache.create();
    ASSERT_TRUE(run.cache.reserve(id, static_cast<int64_t>(p.size())));
    requests.push_back({id, p, WantLogits::last});
  }
  const auto& out = run.model.step(run.plan.build(run.model.config(), run.cache, requests), run.cache.layers());
  for (size_t i = 0; i < prompts.size(); ++i) {
    run.cache.commit(requests[i].sequence, static_cast<int64_t>(prompts[i].size()));
    const auto row = static_cast<int64_t>(i);
    EXPECT_EQ(alone[i], std::vector<float>(&out.logits(row, 0), &out.logits(row, 0) + out.logits.size[1]))
        << "prompt " << i;
  }
  run.cache.check();
}

/// Feeds the tokens that a rollback asks for, then `tokens` from `length` on, and returns the last logits.
std::vector<float> resume(Runner& run, SequenceId id, std::span<const int32_t> tokens, int64_t length, int64_t from) {
  if (from < length)
    run.feed(id, tokens.subspan(static_cast<size_t>(from), static_cast<size_t>(length - from)), WantLogits::none);
  return run.feed(id, tokens.subspan(static_cast<size_t>(length))).back();
}

class Rollback : public testing::TestWithParam<int64_t> {};

TEST_P(Rollback, ToAnyEarlierLengthIsAsIfTheRestHadNeverBeen) {
  const int64_t keep_window = GetParam();
  const auto tokens = random_tokens(420, 5), wrong = random_tokens(420, 6);
  Runner run("cpu", 2048, 3, keep_window);
  for (int64_t length : {0, 1, 4, 5, 127, 128, 129, 132, 255, 256, 257, 300, 384}) {
    const auto prefix = std::span(tokens).first(static_cast<size_t>(length));
    const auto until = std::span(tokens).first(static_cast<size_t>(length + 2));
    const SequenceId straight = run.cache.create();
    const auto want = run.feed(straight, until).back();
    run.cache.release(straight);
    for (int64_t extra : {1, 8, 9, 30}) {
      const SequenceId rolled = run.cache.create();
      if (length > 0) run.feed(rolled, prefix, WantLogits::none);
      run.feed(rolled, std::span(wrong).first(static_cast<size_t>(extra)), WantLogits::none);
      const int64_t from = run.cache.rollback(rolled, length);
      run.cache.check();
      ASSERT_LE(from, length);
      if (keep_window < 0 && extra <= 8) {
        EXPECT_EQ(from, length) << "8 rejected drafts must cost nothing";
      }
      if (keep_window < 0) {
        EXPECT_GE(from, std::max<int64_t>(0, length - 132));
      }
      ASSERT_EQ(want, resume(run, rolled, until, length, from))
          << "length " << length << " extra " << extra << " from " << from;
      run.cache.release(rolled);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KeepWindow, Rollback, testing::Values(-1, 0),
                         [](const auto& i) { return i.param < 0 ? "all" : "none"; });

TEST(Fork, BothBranchesGoOnAsIfAlone) {
  const auto tokens = random_tokens(200, 7), other = random_tokens(60, 8);
  for (size_t at : {1, 63, 64, 65, 130, 199}) {
    Runner run("cpu");
    const auto prefix = std::span(tokens).first(at);
    std::vector<int32_t> left(prefix.begin(), prefix.end()), right = left;
    left.insert(left.end(), tokens.begin(), tokens.begin() + 40);
    right.insert(right.end(), other.begin(), other.end());
    const SequenceId a = run.cache.create(), b = run.cache.create(), trunk = run.cache.create();
    const auto want_left = run.feed(a, left).back(), want_right = run.feed(b, right).back();
    run.feed(trunk, prefix, WantLogits::none);
    const SequenceId branch = run.cache.fork(trunk);
    run.cache.check();
    EXPECT_EQ(want_right, run.feed(branch, std::span(right).subspan(at)).back()) << at;
    EXPECT_EQ(want_left, run.feed(trunk, std::span(left).subspan(at)).back()) << at;
    run.cache.release(branch);
    run.cache.release(trunk);
    run.cache.check();
  }
}

TEST(Books, BalanceUnderRandomUseAndReserveChangesNothingWhenItFails) {
  EXPECT_TRUE(rc::check("in use + free = total", [] {
    const auto& config = Fairy::get().checkpoint.config();
    Cache cache(config, CacheBudget{1500, 5, *rc::gen::element<int64_t>(-1, 0, 100), 0});
    std::vector<SequenceId> alive;
    const auto steps = *rc::gen::inRange(1, 60);
    for (int i = 0; i < steps; ++i) {
      const int what = *rc::gen::inRange(0, 5);
      if (what == 0 && cache.can_create()) alive.push_back(cache.create());
      if (alive.empty()) continue;
      const auto which = static_cast<size_t>(*rc::gen::inRange(0, static_cast<int>(alive.size())));
      const SequenceId id = alive[which];
      if (what == 1 && cache.can_create()) alive.push_back(cache.fork(id));
      if (what == 2) {
        const int64_t tokens = *rc::gen::inRange(1, 400);
        const auto before = cache.usage();
        if (cache.reserve(id, tokens)) {
          cache.commit(id, tokens);
        } else {
          RC_ASSERT(cache.usage().window_free == before.window_free && cache.usage().entry_free == before.entry_free);
        }
      }
      if (what == 3) cache.rollback(id, *rc::gen::inRange<int64_t>(0, cache.length(id) + 1));
      if (what == 4) {
        cache.release(id);
        alive.erase(alive.begin() + static_cast<int64_t>(which));
      }
      cache.check();
    }
    for (SequenceId id : alive) cache.release(id);
    const auto end = cache.usage();
    RC_ASSERT(end.window_free == end.window_total && end.entry_free == end.entry_total && end.sequences_free == 5);
  }));
}

TEST(Books, BytesNeededIsWhatACacheTakes) {
  const auto& config = Fairy::get().checkpoint.config();
  for (const CacheBudget budget :
       {CacheBudget{1, 1, -1, 0}, CacheBudget{4096, 3, -1, 2}, CacheBudget{100000, 64, 0, 0}}) {
    const int64_t needed = Cache::bytes_needed(config, budget), taken = Cache(config, budget).usage().bytes;
    EXPECT_LE(needed, taken);
    EXPECT_LE(taken, needed + 64 * 8 * (config.num_layers + budget.draft_stages)) << "more than rounding to 64 bytes";
  }
}

TEST(Books, ACacheThatIsFullRefusesCleanly) {
  Runner run("cpu", 256, 1);
  const SequenceId id = run.cache.create();
  EXPECT_FALSE(run.cache.can_create());
  EXPECT_THROW(run.cache.create(), Error);
  EXPECT_FALSE(run.cache.reserve(id, 100000));
  EXPECT_TRUE(run.cache.reserve(id, 256));
}

}  // namespace
}  // namespace fathom::test
