// Turns of several clients: alone, and in an engine that feeds prompts in chunks and lets requests give way.
#include "engine/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cache/model_support.h"
#include "engine/engine_support.h"

namespace fathom::test {
namespace {

struct Line : FairQueue {
  RequestId ids = 0;
  int64_t starts = 0;

  const Active& ask(const std::string& client, int64_t prompt, int64_t max_tokens = 0) {
    auto a = std::make_unique<Active>();
    a->id = ++ids, a->prompt = prompt, a->request.client = client, a->request.max_tokens = max_tokens;
    a->tokens.resize(static_cast<size_t>(prompt));
    const Active& out = *a;
    add(std::move(a));
    return out;
  }
  /// Starts whose turn it is; all its tokens are counted at once.
  std::unique_ptr<Active> start() {
    auto a = take(*next([](const Active&) { return true; }));
    a->order = ++starts;
    began(*a, a->prompt);
    charge(*a, a->request.max_tokens);
    return a;
  }
};

TEST(FairQueue, OneClientKeepsItsOrder) {
  Line line;
  for (int64_t prompt : {50, 3, 700}) line.ask("a", prompt);
  for (RequestId id : {1, 2, 3}) EXPECT_EQ(line.start()->id, id);
  EXPECT_EQ(line.size(), 0u);
}

TEST(FairQueue, FiveHundredRequestsDoNotHoldTheSingleOneOfAnother) {
  Line line;
  for (int i = 0; i < 500; ++i) line.ask("many", 100, 20);
  for (int i = 0; i < 8; ++i) line.start();
  const Active& single = line.ask("one", 100, 20);
  EXPECT_LE(line.before(single), 1);
  const auto first = line.start();
  EXPECT_TRUE(first->request.client == "one" || line.start()->request.client == "one");
}

TEST(FairQueue, ClientsThatWaitGetTheSameNumberOfTokens) {
  Line line;
  for (int i = 0; i < 300; ++i) line.ask("long", 1000, 100), line.ask("short", 90, 20);
  for (int i = 0; i < 300; ++i) line.ask("middle", 300, 30);
  std::map<std::string, int64_t> tokens;
  for (int i = 0; i < 200; ++i) {
    const auto a = line.start();
    tokens[a->request.client] += a->prompt + a->request.max_tokens;
  }
  for (const auto& [client, n] : tokens) EXPECT_NEAR(double(n), double(tokens["middle"]), 1100 + 330) << client;
}

TEST(FairQueue, EveryTurnComesHoweverManyNewClientsCome) {
  Line line;
  line.ask("patient", 1000, 100);
  line.ask("patient", 1000, 100);
  for (int i = 0; i < 20; ++i) line.ask("first " + std::to_string(i), 50, 5);
  int others = 0;
  for (int patient = 0; patient < 2; ++others) {
    line.ask("new " + std::to_string(others), 50, 5);
    const auto a = line.start();
    patient += a->request.client == "patient";
    line.leave(*a);
    ASSERT_LT(others, 2000);
  }
}

TEST(FairQueue, NobodySavesUpTurnsAndWhatNobodyWaitedForIsNotCounted) {
  Line line;
  for (int i = 0; i < 50; ++i) line.ask("busy", 500), line.start();  // nobody else was here
  for (int i = 0; i < 4; ++i) line.ask("busy", 100);
  for (int i = 0; i < 4; ++i) line.ask("new", 100);
  std::string order;
  for (int i = 0; i < 8; ++i) order += line.start()->request.client[0];
  EXPECT_EQ(order, "bnbnbnbn");
}

TEST(FairQueue, WhoGaveWayGoesOnBeforeAllThatHaveNeverRun) {
  Line line;
  for (int i = 0; i < 4; ++i) line.ask("a", 10);
  auto first = line.start(), second = line.start();
  line.put_back(std::move(second)), line.put_back(std::move(first));
  line.ask("b", 1);
  const auto take = [&] { return line.take(*line.next([](const Active&) { return true; }))->id; };
  EXPECT_EQ(take(), 1);
  EXPECT_EQ(take(), 2);
}

TEST(FairQueue, APlaceIsTheNumberOfThoseThatStartBefore) {
  Line line;
  for (int i = 0; i < 40; ++i) {
    line.ask("a", 100 + i, 10), line.ask("b", 17 * (i % 5) + 1, 50);
    if (i % 3 == 0) line.ask("c", 900, 100);
  }
  for (int i = 0; i < 10; ++i) line.start();
  std::map<RequestId, int64_t> before;
  for (const Active* a : line.all()) before[a->id] = line.before(*a);
  for (int64_t i = 0; line.size() > 0; ++i) {
    const auto a = line.start();
    EXPECT_EQ(before[a->id], i);
  }
}

GenerationRequest ask(const std::string& client, int32_t seed, size_t prompt, int64_t max_tokens) {
  GenerationRequest r;
  for (size_t i = 0; i < prompt; ++i)
    r.prompt.push_back(static_cast<int32_t>(3 + (static_cast<size_t>(seed) * 577 + i * i * 7 + i * 31) % 1900));
  r.max_tokens = max_tokens;
  r.sampling.seed = static_cast<uint64_t>(seed);
  r.client = client;
  return r;
}

TEST(FairQueue, HoldsWithPromptsInChunksAndWhenRequestsGiveWay) {
  if (kSanitized) GTEST_SKIP() << "too slow with sanitizers; the schedules of schedule_property_test.cpp run with them";
  EngineOptions o;
  o.cache_tokens = 768, o.max_sequences = 3, o.chunk_tokens = 64, o.chunk_beside_decode = 32;
  const auto& config = Fairy::get().checkpoint.config();
  Engine engine(config, Fairy::get().weights, o);
  std::map<RequestId, GenerationRequest> requests;
  const auto add = [&](GenerationRequest r) {
    const RequestId id = engine.add(r);
    requests[id] = std::move(r);
    return id;
  };
  for (int32_t i = 0; i < 4; ++i) add(ask("many", i, 230 + 5 * static_cast<size_t>(i), 290));
  std::map<RequestId, Result> got;
  std::vector<RequestId> ends;
  const auto keep = [&](const GenerationEvent& e) {
    take(got[e.request], e);
    if (e.finish != FinishReason::none) ends.push_back(e.request);
  };
  for (int i = 0; i < 30; ++i) engine.step(keep);
  const RequestId single = add(ask("one", 99, 150, 10));
  while (engine.step(keep)) check_books(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_LE(std::find(ends.begin(), ends.end(), single) - ends.begin(), 3) << "behind those that ran when it came";
  o.prefix_cache = false, o.cache_tokens = 1024, o.max_sequences = 1;
  Engine alone(config, Fairy::get().weights, o);
  for (const auto& [id, request] : requests) {
    const RequestId again = alone.add(request);
    EXPECT_EQ(got[id].tokens, run_all(alone)[again].tokens) << id;
  }
}

TEST(SamePrompt, OfManyRequestsIsComputedOnceAndHoldsNobodyUp) {
  EngineOptions o;
  o.cache_tokens = 4096, o.max_sequences = 6, o.chunk_tokens = 64;
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o);
  std::vector<RequestId> same;
  for (uint64_t k = 0; k < 4; ++k) {
    GenerationRequest r = ask("", 7, 520, 6);
    r.sampling.seed = k;
    same.push_back(engine.add(std::move(r)));
  }
  const RequestId other = engine.add(ask("", 8, 20, 2));
  std::map<RequestId, Result> got;
  std::vector<RequestId> ends;
  while (engine.step([&](const GenerationEvent& e) {
    take(got[e.request], e);
    if (e.finish != FinishReason::none) ends.push_back(e.request);
  }))
    check_books(engine);
  EXPECT_EQ(ends.front(), other) << "it need not wait for a prompt that is not its own";
  EXPECT_LE(engine.stats().prompt_tokens, 520 + 20 + 3 * (520 - 512 + 4)) << "whole blocks are computed once";
  EXPECT_EQ(got[same[0]].cached_tokens, 0);
  for (size_t k = 1; k < 4; ++k) EXPECT_GE(got[same[k]].cached_tokens, 508) << k;
}

TEST(LongPrompt, Of16KTokensHoldsRunningStreamsForOneChunkAtATime) {
  // The schedule alone, without a model: what each step feeds.
  const ModelConfig& config = Fairy::get().checkpoint.config();
  EngineOptions o;
  o.cache_tokens = 20480, o.max_sequences = 9, o.chunk_tokens = 512, o.chunk_beside_decode = 256, o.snapshots = 0;
  Cache cache(config, {o.cache_tokens, o.max_sequences, -1, 0, 0, 0});
  PrefixCache prefix(cache);
  Scheduler scheduler(cache, prefix, o);
  RequestId ids = 0;
  const auto add = [&](int64_t prompt) {
    auto a = std::make_unique<Active>();
    a->id = ++ids, a->prompt = prompt, a->request.max_tokens = 200;
    for (int64_t i = 0; i < prompt; ++i) a->tokens.push_back(static_cast<int32_t>(3 + (i * 31 + ids * 577) % 1900));
    scheduler.add(std::move(a));
  };
  for (int i = 0; i < 8; ++i) add(20);
  StepWork work;
  int64_t steps = 0, longest_fed = 0;
  for (bool fed_all = false; !fed_all;) {
    scheduler.plan(work);
    int64_t prompt_tokens = 0, streams = 0;
    for (size_t i = 0; i < work.owners.size(); ++i) {
      Active& a = *work.owners[i];
      const auto n = static_cast<int64_t>(work.segments[i].tokens.size());
      if (a.id <= 8) ++streams;
      if (a.id == 9) prompt_tokens = n;
      const bool whole = work.segments[i].logits != WantLogits::none;
      cache.commit(a.sequence, n);
      scheduler.fed(a, n);
      if (whole) a.tokens.push_back(5);
      fed_all = fed_all || (whole && a.id == 9);
    }
    EXPECT_EQ(streams, 8) << "every stream gets a token in every step";
    if (ids == 9) ++steps, longest_fed = std::max(longest_fed, prompt_tokens);
    if (ids < 9) add(16000);
  }
  EXPECT_EQ(longest_fed, 256);
  EXPECT_EQ(steps, (16000 + 255) / 256);
}

}  // namespace
}  // namespace fathom::test
