// The prefix cache behind the engine: what hits are worth, who shares, and that no hit changes a token.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "cache/model_support.h"
#include "engine/engine_support.h"

namespace fathom::test {
namespace {

EngineOptions options(int64_t cache_tokens = 4096, int32_t sequences = 4) {
  EngineOptions o;
  o.cache_tokens = cache_tokens, o.max_sequences = sequences, o.chunk_tokens = 256;
  return o;
}

struct Tiny : Engine {
  explicit Tiny(const EngineOptions& o = options())
      : Engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o) {}

  Result get(const GenerationRequest& r) {
    const RequestId id = add(r);
    return run_all(*this)[id];
  }
};

std::vector<int32_t> some_tokens(size_t n, int32_t seed) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < n; ++i)
    out.push_back(static_cast<int32_t>(3 + (static_cast<size_t>(seed) * 577 + i * i * 7 + i * 31) % 1900));
  return out;
}

GenerationRequest ask(std::vector<int32_t> prompt, int64_t max_tokens = 8, uint64_t seed = 1) {
  GenerationRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  return r;
}

std::vector<int32_t> cold(const GenerationRequest& r) {
  EngineOptions o = options();
  o.prefix_cache = false;
  return Tiny(o).get(r).tokens;
}

TEST(EnginePrefix, TheNextTurnOfAnAgentComputesTheNewTokensAlone) {
  Tiny engine;
  std::vector<int32_t> conversation = some_tokens(300, 1);
  for (int turn = 0; turn < 5; ++turn) {
    const int64_t before = engine.stats().prompt_tokens;
    const auto request = ask(conversation, 20, static_cast<uint64_t>(turn));
    const Result got = engine.get(request);
    EXPECT_EQ(got.tokens, cold(request)) << "turn " << turn;
    const auto computed = engine.stats().prompt_tokens - before;
    EXPECT_EQ(computed + got.cached_tokens, static_cast<int64_t>(conversation.size()));
    // All but the last token of a reply was computed while it was generated.
    if (turn > 0) {
      EXPECT_EQ(computed, 1 + 40) << "turn " << turn;
    }
    conversation.insert(conversation.end(), got.tokens.begin(), got.tokens.end());
    const auto tool_output = some_tokens(40, 100 + turn);
    conversation.insert(conversation.end(), tool_output.begin(), tool_output.end());
  }
}

TEST(EnginePrefix, WithoutSnapshotsTheNextTurnComputesAtMostOnePageMore) {
  EngineOptions o = options();
  o.snapshots = 0;
  Tiny engine(o);
  std::vector<int32_t> conversation = some_tokens(290, 2);
  for (int turn = 0; turn < 4; ++turn) {
    const int64_t before = engine.stats().prompt_tokens;
    const auto request = ask(conversation, 30, static_cast<uint64_t>(turn));
    const Result got = engine.get(request);
    EXPECT_EQ(got.tokens, cold(request)) << "turn " << turn;
    if (turn > 0) {
      EXPECT_LE(engine.stats().prompt_tokens - before, 1 + 40 + Cache::kEntryPage) << "turn " << turn;
    }
    conversation.insert(conversation.end(), got.tokens.begin(), got.tokens.end());
    const auto tool_output = some_tokens(40, 200 + turn);
    conversation.insert(conversation.end(), tool_output.begin(), tool_output.end());
  }
}

TEST(EnginePrefix, APromptWhoseAnswerIsLeftOutLaterIsStillFoundWhole) {
  EngineOptions o = options(2048, 2);
  o.window_tokens = 1024;  // far fewer than the tokens below
  Tiny engine(o);
  for (size_t prompt : {300, 400, 511}) {
    const auto first = some_tokens(prompt, 30 + static_cast<int32_t>(prompt));
    engine.get(ask(first, 260));
    engine.get(ask(some_tokens(500, 31), 4));
    auto second = first;
    const auto more = some_tokens(50, 32);
    second.insert(second.end(), more.begin(), more.end());
    const auto request = ask(second, 6);
    const Result got = engine.get(request);
    EXPECT_GE(got.cached_tokens, static_cast<int64_t>(prompt) / 128 * 128 - 4) << prompt;
    EXPECT_EQ(got.tokens, cold(request)) << prompt;
  }
}

class HitLength : public testing::TestWithParam<size_t> {};

TEST_P(HitLength, GivesTheTokensOfAMiss) {
  const size_t common = GetParam();
  Tiny engine;
  const auto first = some_tokens(common, 3);
  engine.get(ask(first, 5));
  auto second = first;
  const auto more = some_tokens(30, 4);
  second.insert(second.end(), more.begin(), more.end());
  for (const auto& request : {ask(first, 12, 7), ask(second, 12, 8)}) {
    const Result got = engine.get(request);
    EXPECT_EQ(got.tokens, cold(request));
    EXPECT_GE(got.cached_tokens, std::max<int64_t>(0, static_cast<int64_t>(common) / 128 * 128 - 4));
    EXPECT_LT(got.cached_tokens, static_cast<int64_t>(request.prompt.size())) << "the last token gives the logits";
  }
}

INSTANTIATE_TEST_SUITE_P(AroundPages, HitLength, testing::ValuesIn(lengths_around_pages()));

TEST(EnginePrefix, AfterAnAbortAtAnyStepAHitGivesTheTokensOfAColdRun) {
  const auto request = ask(some_tokens(420, 5), 40);
  const auto want = cold(request);
  for (int steps : {1, 2, 3, 7, 19, 38}) {
    if (kSanitized && steps % 2 == 0) continue;
    EngineOptions o = options();
    o.chunk_tokens = 100 + 17 * steps;
    Tiny engine(o);
    const RequestId id = engine.add(request);
    for (int i = 0; i < steps; ++i) engine.step([](const GenerationEvent&) {});
    engine.cancel(id);
    engine.step([](const GenerationEvent&) {});
    EXPECT_EQ(engine.stats().cache.sequences_free, 4) << "freed within one step";
    EXPECT_EQ(engine.stats().cache.entry_free + engine.stats().cache.entry_cached, engine.stats().cache.entry_total);
    const Result got = engine.get(request);
    EXPECT_EQ(got.tokens, want) << "aborted after " << steps;
    if (steps > 3) {
      EXPECT_GE(got.cached_tokens, 380);
    }
  }
}

TEST(EnginePrefix, OnlyRequestsOfTheSameSaltShareAndOneThatIsSwitchedOffLeavesNothing) {
  Tiny engine;
  const auto with = [](std::string salt, bool on = true) {
    GenerationRequest r = ask(some_tokens(300, 6));
    r.prefix.salt = std::move(salt), r.prefix.on = on;
    return r;
  };
  EXPECT_EQ(engine.get(with("", false)).cached_tokens, 0);
  EXPECT_EQ(engine.stats().cache.entry_cached, 0);
  EXPECT_EQ(engine.get(with("a")).cached_tokens, 0);
  EXPECT_EQ(engine.get(with("b")).cached_tokens, 0);
  EXPECT_EQ(engine.get(with("a", false)).cached_tokens, 0);
  EXPECT_GT(engine.get(with("a")).cached_tokens, 250);
  EngineOptions off = options();
  off.prefix_cache = false;
  Tiny without(off);
  without.get(with(""));
  EXPECT_EQ(without.get(with("")).cached_tokens, 0);
  EXPECT_EQ(without.stats().cache.entry_free, without.stats().cache.entry_total);
}

TEST(EnginePrefix, RequestsThatRunTogetherShareTheBlocksOfTheFirst) {
  Tiny engine;
  const auto system = some_tokens(520, 7);
  const auto user = [&](int32_t seed) {
    auto prompt = system;
    const auto more = some_tokens(20, seed);
    prompt.insert(prompt.end(), more.begin(), more.end());
    return ask(prompt, 30, static_cast<uint64_t>(seed));
  };
  const RequestId first = engine.add(user(10));
  for (int i = 0; i < 4; ++i) engine.step([](const GenerationEvent&) {});
  const auto alone = engine.stats().cache;
  const RequestId second = engine.add(user(11));
  std::map<RequestId, Result> got;
  engine.step([&](const GenerationEvent& e) { got[e.request].cached_tokens = e.cached_tokens; });
  EXPECT_EQ(got[second].cached_tokens, 508);
  EXPECT_EQ(got[first].cached_tokens, 0);
  const auto both = engine.stats().cache;
  EXPECT_EQ((alone.entry_total - alone.entry_free) + 1, both.entry_total - both.entry_free) << "two pages are shared";
  EXPECT_EQ(run_all(engine)[second].tokens.size(), 29u);
}

TEST(EnginePrefix, AFailedRequestLeavesNothingForOthers) {
  Tiny engine;
  GenerationRequest bad = ask(some_tokens(300, 8), 5);
  for (int32_t id = 0; id < Fairy::get().checkpoint.config().vocab_size; ++id) bad.stop_ids.push_back(id);
  bad.min_tokens = 3;  // no token is left
  EXPECT_EQ(engine.get(bad).finish, FinishReason::failed);
  EXPECT_EQ(engine.stats().cache.entry_cached, 0);
  EXPECT_EQ(engine.get(ask(some_tokens(300, 8), 5)).cached_tokens, 0);
}

TEST(EnginePrefix, LogProbabilitiesOfThePromptAreCompleteAfterAHit) {
  Tiny engine;
  GenerationRequest r = ask(some_tokens(300, 9), 3);
  r.sampling.top_logprobs = 0, r.prompt_logprobs = true;
  const auto prompt_logprobs = [&] {
    std::vector<float> out;
    engine.add(r);
    while (engine.step([&](const GenerationEvent& e) {
      for (const auto& t : e.prompt_tokens) out.push_back(t.logprob);
    })) {
    }
    return out;
  };
  const auto first = prompt_logprobs();
  EXPECT_EQ(first.size(), 299u);
  EXPECT_EQ(prompt_logprobs(), first);
}

TEST(EnginePrefix, ClearingGivesAllPagesBack) {
  Tiny engine;
  engine.get(ask(some_tokens(700, 10)));
  EXPECT_GT(engine.stats().cache.entry_cached, 0);
  engine.clear_prefix_cache();
  EXPECT_EQ(engine.stats().cache.entry_free, engine.stats().cache.entry_total);
  EXPECT_EQ(engine.stats().cache.window_free, engine.stats().cache.window_total);
}

TEST(EnginePrefix, CountersAddUp) {
  Tiny engine;
  int64_t prompts = 0, cached = 0;
  for (int32_t i = 0; i < 6; ++i) {
    const auto r = ask(some_tokens(150 + 40 * static_cast<size_t>(i), i / 2 + 20), 6);
    prompts += static_cast<int64_t>(r.prompt.size());
    cached += engine.get(r).cached_tokens;
  }
  const auto s = engine.stats();
  EXPECT_EQ(s.cached_tokens, cached);
  EXPECT_EQ(s.prompt_tokens + s.cached_tokens, prompts);
  EXPECT_EQ(s.prefix.opened, 6);
  EXPECT_EQ(s.prefix.hits, 3);
  EXPECT_EQ(s.prefix.hit_tokens, cached);
  EXPECT_EQ(s.preemptions, 0);
}

TEST(EnginePrefix, OptionsThatCannotWorkAreRefusedWithNumbers) {
  EngineOptions o = options(100000, 2);
  o.window_tokens = 300;
  try {
    Tiny engine(o);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("656"), std::string::npos) << e.what();
  }
  o.window_tokens = 656;
  Tiny engine(o);
  EXPECT_EQ(engine.get(ask(some_tokens(1500, 11), 4)).tokens, cold(ask(some_tokens(1500, 11), 4)));
  o.snapshots = -2;
  EXPECT_THROW(Tiny{o}, Error);
}

}  // namespace
}  // namespace fathom::test
