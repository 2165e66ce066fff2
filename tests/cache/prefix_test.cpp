// The prefix cache: a sequence that starts from a hit gets the bits of one that starts from nothing.
#include "cache/prefix_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <random>

#include "cache/model_support.h"

namespace fathom::test {
namespace {

std::vector<int32_t> random_tokens(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(n);
  for (auto& t : out) t = static_cast<int32_t>(rng() % 2000) + 3;
  return out;
}

std::vector<int32_t> joined(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

/// A model, a cache that keeps no windows by itself, and a prefix cache, as the engine has them.
struct Cached {
  explicit Cached(CacheBudget budget)
      : model(config(), Fairy::get().weights, ops::op_table("cpu")), cache(config(), budget) {}
  static const ModelConfig& config() { return Fairy::get().checkpoint.config(); }

  std::vector<float> feed(SequenceId id, std::span<const int32_t> tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    if (!prefix.reserve(id, count)) throw std::runtime_error("cache full");
    const SegmentRequest request{id, tokens, WantLogits::last};
    const auto& out = model.step(plan.build(config(), cache, {&request, 1}), cache.layers());
    cache.commit(id, count);
    return {&out.logits(0, 0), &out.logits(0, 0) + out.logits.size[1]};
  }
  struct Run {
    int64_t length = 0;  // of the hit
    std::vector<float> logits;
  };
  /// Opens, feeds what is missing in chunks and closes; the logits behind the last token.
  Run run(std::span<const int32_t> tokens, std::string_view salt = "", size_t chunk = 512, bool keep = true) {
    const SequenceId id = prefix.open(salt, tokens, static_cast<int64_t>(tokens.size()) - 1);
    Run r{cache.length(id), {}};
    for (auto at = static_cast<size_t>(r.length); at < tokens.size(); at += chunk) {
      r.logits = feed(id, tokens.subspan(at, std::min(chunk, tokens.size() - at)));
      if (keep) prefix.keep(id, salt, tokens);
      cache.trim_window(id, PrefixCache::kKeepWindow);
      check();
    }
    prefix.close(id, salt, tokens);
    check();
    return r;
  }
  void check() const {
    cache.check();
    prefix.check();
  }

  Transformer model;
  Cache cache;
  PrefixCache prefix{cache};
  StepPlan plan;
};

constexpr CacheBudget kAmple{4096, 4, -1, 0, 4};

std::vector<float> cold(std::span<const int32_t> tokens) {
  Cached c(kAmple);
  return c.run(tokens).logits;
}

class Lengths : public testing::TestWithParam<size_t> {};

TEST_P(Lengths, TheWholePromptAgainFeedsOnlyTheLastTokenAndGivesTheSameBits) {
  const auto tokens = random_tokens(GetParam(), 1);
  Cached c(kAmple);
  const auto first = c.run(tokens);
  EXPECT_EQ(first.length, 0);
  const auto again = c.run(tokens);
  EXPECT_EQ(again.length, static_cast<int64_t>(tokens.size()) - 1);
  EXPECT_EQ(first.logits, again.logits);
}

TEST_P(Lengths, AConversationThatGoesOnFeedsNothingAgain) {
  const auto before = random_tokens(GetParam(), 2), turn = joined(before, random_tokens(70, 3));
  Cached c(kAmple);
  c.run(before);
  const auto next = c.run(turn);
  EXPECT_EQ(next.length, static_cast<int64_t>(before.size()));
  EXPECT_EQ(next.logits, cold(turn));
}

TEST_P(Lengths, WithoutASnapshotAtMostTheLastBlockIsFedAgain) {
  const auto before = random_tokens(GetParam(), 4), turn = joined(before, random_tokens(70, 5));
  CacheBudget budget = kAmple;
  budget.snapshots = 0;
  Cached c(budget);
  c.run(before);
  const auto next = c.run(turn);
  EXPECT_EQ(next.length, std::max<int64_t>(0, static_cast<int64_t>(before.size()) / 128 * 128 - 4));
  EXPECT_EQ(next.logits, cold(turn));
  EXPECT_EQ(c.prefix.stats().tails, 0);
}

INSTANTIATE_TEST_SUITE_P(AroundPages, Lengths, testing::ValuesIn(lengths_around_pages()));

TEST(Prefix, DivergenceAnywhereGivesTheBitsOfAColdRun) {
  const auto trunk = random_tokens(420, 6);
  for (size_t at : {64, 127, 128, 200, 257, 384, 412}) {
    if (kSanitized && at % 64 == 0) continue;
    Cached c(kAmple);
    c.run(trunk);
    const auto branch = joined(std::span(trunk).first(at), random_tokens(40, 7));
    const auto got = c.run(branch);
    EXPECT_GE(got.length, std::max<int64_t>(0, static_cast<int64_t>(at) / 128 * 128 - 4));
    EXPECT_LE(got.length, static_cast<int64_t>(at));
    EXPECT_EQ(got.logits, cold(branch)) << at;
    EXPECT_EQ(c.run(trunk).logits, cold(trunk)) << "the first one is still right, " << at;
  }
}

TEST(Prefix, SequencesThatGoOnFromOneBlockAtOnceDoNotDisturbEachOther) {
  const auto trunk = random_tokens(384, 8);  // half an entry page is shared
  const auto left = joined(trunk, random_tokens(150, 9)), right = joined(trunk, random_tokens(150, 10));
  Cached c(kAmple);
  c.run(trunk);
  const SequenceId a = c.prefix.open("", left, 533), b = c.prefix.open("", right, 533);
  ASSERT_GE(c.cache.length(a), 380);
  std::vector<float> got_a, got_b;
  for (size_t i = static_cast<size_t>(c.cache.length(a)); i < left.size(); i += 7)
    got_a = c.feed(a, std::span(left).subspan(i, std::min<size_t>(7, left.size() - i))),
    got_b = c.feed(b, std::span(right).subspan(i, std::min<size_t>(7, right.size() - i))), c.check();
  EXPECT_EQ(got_a, cold(left));
  EXPECT_EQ(got_b, cold(right));
  c.prefix.close(a, "", left);
  c.prefix.close(b, "", right);
  c.check();
  EXPECT_EQ(c.run(trunk).logits, cold(trunk));
}

TEST(Prefix, SaltsAreWorldsOfTheirOwn) {
  const auto tokens = random_tokens(300, 11);
  Cached c(kAmple);
  c.run(tokens, "alice");
  EXPECT_EQ(c.run(tokens, "bob").length, 0);
  EXPECT_EQ(c.run(tokens, "").length, 0);
  EXPECT_EQ(c.run(tokens, "alice").length, 299);
  EXPECT_EQ(c.run(tokens, "bob").length, 299);
}

TEST(Prefix, ForgottenTokensAreNotFoundAndAllPagesComeBack) {
  const auto tokens = random_tokens(700, 12);
  Cached c(kAmple);
  c.run(tokens);
  c.prefix.forget("", tokens);
  c.check();
  EXPECT_EQ(c.prefix.find("", tokens, 699).length, 0);
  const auto usage = c.cache.usage();
  EXPECT_EQ(usage.window_free, usage.window_total);
  EXPECT_EQ(usage.entry_free, usage.entry_total);
  EXPECT_EQ(usage.snapshots_used, 0);
}

TEST(Prefix, TheLongestUnusedGoesFirst) {
  CacheBudget budget = kAmple;
  budget.tokens = 768, budget.sequences = 1, budget.window_tokens = 4096;
  Cached c(budget);
  const auto old = random_tokens(256, 13), used = random_tokens(256, 14), third = random_tokens(256, 15);
  c.run(old);
  c.run(used);
  c.run(third);
  c.run(old), c.run(used);  // third is now the oldest
  EXPECT_EQ(c.run(old).length, 255);
  c.run(random_tokens(500, 16));
  EXPECT_EQ(c.prefix.find("", third, 255).length, 0);
  EXPECT_EQ(c.prefix.find("", used, 255).length, 255);
  EXPECT_EQ(c.prefix.find("", old, 255).length, 255);
}

TEST(Prefix, WindowRowsAreGivenUpBeforeEntriesWhereNobodyStopped) {
  CacheBudget budget{4096, 1, -1, 0, 4};
  budget.window_tokens = 1024;
  Cached c(budget);
  const auto first = random_tokens(1400, 17), second = random_tokens(700, 18);
  c.run(first, "", 128);
  c.run(second, "", 128);
  EXPECT_GT(c.prefix.stats().evicted_windows, 0);
  EXPECT_EQ(c.prefix.stats().evicted_blocks, 0);
  const auto on = joined(first, random_tokens(20, 19));
  const auto got = c.run(on, "", 128);
  EXPECT_EQ(got.length, 1400) << "where it ended the window is still there";
  EXPECT_EQ(got.logits, cold(on));
}

TEST(Prefix, DraftRowsComeWithAHit) {
  CacheBudget budget = kAmple;
  budget.draft_stages = 2;
  Cached c(budget);
  const auto tokens = random_tokens(300, 20);
  const auto stages = c.cache.layers().subspan(static_cast<size_t>(Cached::config().num_layers));
  const auto row = [&](const LayerCache& stage, SequenceId id, int64_t p) {
    return stage.window.row_data(ops::RowFormat::v4, c.cache.window_row(id, p));
  };
  const SequenceId id = c.prefix.open("", tokens, 299);
  c.feed(id, tokens);
  for (size_t s = 0; s < stages.size(); ++s)
    for (int64_t p = 100; p < 300; ++p) std::memset(row(stages[s], id, p), static_cast<int>(p * 7 + s), 64);
  c.prefix.close(id, "", tokens);
  for (const auto& next :
       {joined(tokens, random_tokens(9, 21)), joined(std::span(tokens).first(256), random_tokens(9, 22))}) {
    const SequenceId hit = c.prefix.open("", next, 299);
    const int64_t length = c.cache.length(hit);
    ASSERT_GE(length, 252);
    c.feed(hit, std::span(next).subspan(static_cast<size_t>(length)));
    for (size_t s = 0; s < stages.size(); ++s)
      for (int64_t p = length - 127; p < std::min<int64_t>(length, 256); ++p)
        EXPECT_EQ(std::to_integer<int>(*row(stages[s], hit, p)), static_cast<int>(p * 7 + s) % 256) << p;
    c.prefix.close(hit, "", next);
  }
}

/// Books alone, without a model: thousands of steps.
TEST(Prefix, BooksBalanceUnderRandomUseOfTinyPools) {
  EXPECT_TRUE(rc::check("used + cached + free = total", [] {
    CacheBudget budget{*rc::gen::element<int64_t>(256, 700, 1500, 3000), *rc::gen::inRange(1, 5), -1, 0,
                       *rc::gen::inRange(0, 4)};
    budget.window_tokens = *rc::gen::element<int64_t>(0, 512, 900);
    Cache cache(Cached::config(), budget);
    PrefixCache prefix(cache);
    struct Live {
      SequenceId id;
      std::string salt;
      std::vector<int32_t> tokens;
    };
    std::vector<Live> alive;
    const auto check = [&] { cache.check(), prefix.check(); };
    const int steps = *rc::gen::inRange(1, 400);
    for (int i = 0; i < steps; ++i) {
      const int what = *rc::gen::inRange(0, 8);
      if (what < 2 && cache.can_create()) {
        Live l{{}, *rc::gen::element<std::string>("", "s"), {}};
        l.tokens.assign(static_cast<size_t>(*rc::gen::inRange(1, 700)), 5);
        if (*rc::gen::inRange(0, 3) == 0)
          l.tokens[static_cast<size_t>(*rc::gen::inRange(0, static_cast<int>(l.tokens.size())))] = 6;
        const auto limit = static_cast<int64_t>(l.tokens.size()) - 1;
        const auto hit = prefix.find(l.salt, l.tokens, limit);
        l.id = prefix.open(l.salt, l.tokens, limit);
        RC_ASSERT(cache.length(l.id) == hit.length && cache.rows(l.id) == hit.rows && hit.length <= limit);
        alive.push_back(std::move(l));
      } else if (!alive.empty()) {
        const auto which = static_cast<size_t>(*rc::gen::inRange(0, static_cast<int>(alive.size())));
        Live& l = alive[which];
        const int64_t left = static_cast<int64_t>(l.tokens.size()) - cache.length(l.id);
        if (what < 6 && left > 0) {
          const int64_t n = std::min<int64_t>(left, *rc::gen::inRange(1, 300));
          const auto before = cache.usage();
          if (prefix.reserve(l.id, n)) {
            cache.commit(l.id, n);
            if (what == 4) prefix.keep(l.id, l.salt, l.tokens);
            if (what == 3) prefix.keep_end(l.id, l.salt, l.tokens);
            cache.trim_window(l.id, *rc::gen::element<int64_t>(0, Cache::kRing4, PrefixCache::kKeepWindow));
          } else {
            RC_ASSERT(before.window_free == cache.usage().window_free &&
                      before.entry_cached == cache.usage().entry_cached);
          }
        } else if (what == 6) {
          prefix.close(l.id, l.salt, l.tokens);
          alive.erase(alive.begin() + static_cast<int64_t>(which));
        } else if (*rc::gen::inRange(0, 10) == 0) {
          prefix.forget(l.salt, l.tokens);
        }
      }
      check();
    }
    for (const Live& l : alive) prefix.close(l.id, l.salt, l.tokens);
    check();
    prefix.clear();
    check();
    const auto end = cache.usage();
    RC_ASSERT(end.window_free == end.window_total && end.entry_free == end.entry_total);
    RC_ASSERT(end.sequences_free == budget.sequences && end.snapshots_used == 0);
  }));
}

}  // namespace
}  // namespace fathom::test
