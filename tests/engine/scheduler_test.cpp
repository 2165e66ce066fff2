// Who runs when: admission by pages, giving way, fairness and the bound on what a step feeds.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "cache/model_support.h"
#include "engine/engine_support.h"

namespace fathom::test {
namespace {

EngineOptions options(int64_t cache_tokens, int32_t sequences, int64_t chunk = 128) {
  EngineOptions o;
  o.cache_tokens = cache_tokens, o.max_sequences = sequences, o.chunk_tokens = chunk;
  return o;
}

struct Tiny : Engine {
  explicit Tiny(const EngineOptions& o) : Engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o) {}
};

GenerationRequest ask(int32_t seed, size_t prompt, int64_t max_tokens) {
  GenerationRequest r;
  for (size_t i = 0; i < prompt; ++i)
    r.prompt.push_back(static_cast<int32_t>(3 + (static_cast<size_t>(seed) * 577 + i * i * 7 + i * 31) % 1900));
  r.max_tokens = max_tokens;
  r.sampling.seed = static_cast<uint64_t>(seed);
  return r;
}

std::vector<int32_t> alone(const GenerationRequest& r) {
  EngineOptions o = options(4096, 1, 512);
  o.prefix_cache = false;
  Tiny engine(o);
  const RequestId id = engine.add(r);
  return run_all(engine)[id].tokens;
}

class GivingWay : public testing::TestWithParam<int32_t> {};

TEST_P(GivingWay, LosesNothingWhenPagesRunOut) {
  // Three requests that fit when they are admitted and do not when they have grown.
  EngineOptions o = options(768, 3);
  o.snapshots = GetParam();
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 3; ++i) requests.push_back(ask(i, 230 + 5 * static_cast<size_t>(i), 290));
  Tiny engine(o);
  std::vector<RequestId> ids;
  for (const auto& r : requests) ids.push_back(engine.add(r));
  auto got = run_all(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(got[ids[i]].tokens, alone(requests[i])) << i;
    EXPECT_EQ(got[ids[i]].finish, FinishReason::length);
  }
  const auto s = engine.stats();
  EXPECT_EQ(s.prompt_tokens + s.cached_tokens, 230 + 235 + 240) << "what was computed twice is counted apart";
  EXPECT_EQ(s.cache.entry_free + s.cache.entry_cached, s.cache.entry_total);
}

INSTANTIATE_TEST_SUITE_P(Snapshots, GivingWay, testing::Values(0, 2));

TEST(Scheduler, TheLatestRequestGivesWayAndTheOldestNeverDoes) {
  Tiny engine(options(768, 3));
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 3; ++i) ids.push_back(engine.add(ask(i, 240, 300)));
  std::map<RequestId, int> steps_without_token;
  std::vector<RequestId> order;
  std::map<RequestId, int64_t> tokens;
  int64_t step = 0, first_token_at = -1;
  while (engine.step([&](const GenerationEvent& e) {
    ++tokens[e.request];
    if (e.finish != FinishReason::none) order.push_back(e.request);
    if (e.request == ids[0] && first_token_at < 0) first_token_at = step;
  }))
    if (++step, first_token_at >= 0 && tokens[ids[0]] < 300) {
      EXPECT_EQ(tokens[ids[0]], step - first_token_at);
    }
  EXPECT_EQ(order, ids) << "in order of arrival";
  EXPECT_GT(engine.stats().preemptions, 0);
}

TEST(Scheduler, ALongPromptHoldsRunningStreamsForOneChunkAtMost) {
  EngineOptions o = options(4096, 4, 64);
  o.chunk_beside_decode = 48;
  Tiny engine(o);
  const RequestId a = engine.add(ask(1, 20, 200)), b = engine.add(ask(2, 30, 200));
  std::map<RequestId, int> tokens;
  const auto count = [&](const GenerationEvent& e) { ++tokens[e.request]; };
  engine.step(count);
  const RequestId prompt = engine.add(ask(3, 1500, 5));
  int steps = 0;
  while (tokens[prompt] == 0) {
    const int64_t before = engine.stats().prompt_tokens;
    ASSERT_TRUE(engine.step(count));
    ++steps;
    EXPECT_LE(engine.stats().prompt_tokens - before, 48);
    EXPECT_EQ(tokens[a], 1 + steps) << "a token every step";
    EXPECT_EQ(tokens[b], 1 + steps);
  }
  EXPECT_EQ(steps, (1500 + 47) / 48);
}

TEST(Scheduler, RequestsStartInOrderOfArrivalEvenWhenALaterOneWouldFit) {
  Tiny engine(options(1024, 4));
  const RequestId big = engine.add(ask(1, 700, 40)), second = engine.add(ask(2, 600, 4)),
                  small = engine.add(ask(3, 10, 4));
  std::vector<RequestId> started;
  while (engine.step([&](const GenerationEvent& e) {
    if (std::find(started.begin(), started.end(), e.request) == started.end()) started.push_back(e.request);
  })) {
  }
  EXPECT_EQ(started, (std::vector<RequestId>{big, second, small}));
}

TEST(Scheduler, AHeldRequestMakesRoomForOthersAndGoesOnWhereItWas) {
  Tiny engine(options(512, 1));
  const auto slow = ask(1, 200, 60), other = ask(2, 300, 20);
  const RequestId held = engine.add(slow);
  std::map<RequestId, Result> got;
  const auto keep = [&](const GenerationEvent& e) {
    if (e.token.token >= 0) got[e.request].tokens.push_back(e.token.token);
    got[e.request].finish = e.finish;
  };
  for (int i = 0; i < 10; ++i) engine.step(keep);
  engine.hold(held, true);
  EXPECT_FALSE(engine.step(keep)) << "nothing else to do";
  const RequestId second = engine.add(other);
  while (engine.step(keep)) check_books(engine);
  EXPECT_EQ(got[second].tokens, alone(other));
  EXPECT_FALSE(engine.idle());
  const auto before = got[held].tokens.size();
  EXPECT_LT(before, 60u);
  engine.hold(held, false);
  while (engine.step(keep)) check_books(engine);
  EXPECT_EQ(got[held].tokens, alone(slow));
  EXPECT_EQ(engine.stats().preemptions, 1);
}

TEST(Scheduler, ManyMoreRequestsThanPagesAllEndWithTheirTokens) {
  Tiny engine(options(512, 8, 64));
  std::vector<GenerationRequest> requests;
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 12; ++i) requests.push_back(ask(i % 5, 20 + 30 * static_cast<size_t>(i % 5), 25));
  for (const auto& r : requests) ids.push_back(engine.add(r));
  auto got = run_all(engine);
  std::map<int32_t, std::vector<int32_t>> want;
  for (size_t i = 0; i < ids.size(); ++i) {
    auto& w = want[static_cast<int32_t>(i % 5)];
    if (w.empty()) w = alone(requests[i]);
    EXPECT_EQ(got[ids[i]].tokens, w) << i;
  }
}

TEST(Scheduler, ACancelledRequestIsGoneAfterOneStepWhereverItIs) {
  Tiny engine(options(768, 2));
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 4; ++i) ids.push_back(engine.add(ask(i, 250, 300)));
  const auto ignore = [](const GenerationEvent&) {};
  while (engine.stats().preemptions == 0) ASSERT_TRUE(engine.step(ignore));
  for (RequestId id : ids) engine.cancel(id);
  int ended = 0;
  engine.step([&](const GenerationEvent& e) { ended += e.finish == FinishReason::cancelled; });
  EXPECT_EQ(ended, 4);
  EXPECT_TRUE(engine.idle());
  check_books(engine);
  const auto c = engine.stats().cache;
  EXPECT_EQ(c.sequences_free, 2);
  EXPECT_EQ(c.entry_free + c.entry_cached, c.entry_total);
  EXPECT_EQ(c.window_free + c.window_cached, c.window_total);
}

TEST(Scheduler, ARequestThatCanNeverFitIsRefusedWithNumbers) {
  Tiny engine(options(512, 2));
  try {
    engine.add(ask(1, 513, 5));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("513"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("512"), std::string::npos) << e.what();
  }
  const RequestId whole = engine.add(ask(1, 400, 112));
  engine.add(ask(2, 400, 112));
  EXPECT_EQ(run_all(engine)[whole].tokens.size(), 112u) << "what fits exactly runs";
}

}  // namespace
}  // namespace fathom::test
