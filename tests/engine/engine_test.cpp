#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "cache/model_support.h"
#include "engine/engine_support.h"
#include "engine/loaded_model.h"
#include "engine/text_stream.h"

namespace fathom::test {
namespace {

GenerationRequest story(uint64_t seed, int64_t max_tokens, size_t prompt_length) {
  GenerationRequest r;
  for (size_t i = 0; i < prompt_length; ++i) r.prompt.push_back(static_cast<int32_t>(3 + (seed * 131 + i * 17) % 1900));
  r.sampling.seed = seed;
  r.max_tokens = max_tokens;
  return r;
}

Engine make_engine(int64_t cache_tokens = 2048, int32_t sequences = 8, int64_t chunk = 512) {
  EngineOptions o;
  o.cache_tokens = cache_tokens, o.max_sequences = sequences, o.chunk_tokens = chunk;
  return Engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o);
}

TEST(Engine, ARequestGetsTheSameTokensAloneAndInAnyBatchAndChunking) {
  std::vector<Result> alone;
  for (uint64_t i = 0; i < 5; ++i) {
    Engine engine = make_engine();
    const RequestId id = engine.add(story(i, 12, 1 + 37 * i));
    alone.push_back(run_all(engine)[id]);
  }
  for (int64_t chunk : {512, 16}) {
    Engine engine = make_engine(2048, 3, chunk);  // fewer places than requests: some wait
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 5; ++i) ids.push_back(engine.add(story(i, 12, 1 + 37 * i)));
    auto together = run_all(engine);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(together[ids[i]].tokens, alone[i].tokens) << "request " << i << " chunk " << chunk;
      EXPECT_EQ(together[ids[i]].finish, FinishReason::length);
    }
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(engine.stats().cache.sequences_free, 3);
  }
}

TEST(Engine, StopIdsEndARequestButNotBeforeMinTokens) {
  Engine engine = make_engine();
  GenerationRequest plain = story(9, 10, 5);
  plain.sampling.temperature = 0;
  const RequestId first = engine.add(plain);
  const auto tokens = run_all(engine)[first].tokens;
  GenerationRequest stopped = plain, late = plain;
  stopped.stop_ids = {tokens[4]};
  late.stop_ids = {tokens[4]}, late.min_tokens = 10;
  const RequestId a = engine.add(stopped), b = engine.add(late);
  auto got = run_all(engine);
  const auto where = std::find(tokens.begin(), tokens.end(), tokens[4]) - tokens.begin();
  EXPECT_EQ(got[a].finish, FinishReason::stop);
  EXPECT_EQ(got[a].tokens.size(), static_cast<size_t>(where + 1));
  EXPECT_EQ(got[b].tokens.size(), 10u);
  EXPECT_EQ(std::count(got[b].tokens.begin(), got[b].tokens.end(), tokens[4]), 0);
}

TEST(Engine, CancelEndsWaitingAndRunningRequestsOnceAndFreesTheirRoom) {
  Engine engine = make_engine(2048, 1);
  const RequestId running = engine.add(story(1, 500, 10)), waiting = engine.add(story(2, 500, 10));
  std::map<RequestId, int> ends;
  const auto report = [&](const GenerationEvent& e) { ends[e.request] += e.finish != FinishReason::none; };
  engine.step(report);
  engine.cancel(running), engine.cancel(waiting), engine.cancel(999);
  while (engine.step(report)) {
  }
  EXPECT_EQ(ends[running], 1);
  EXPECT_EQ(ends[waiting], 1);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.stats().cache.sequences_free, 1);
}

TEST(Engine, RefusesRequestsThatCanNeverRun) {
  Engine engine = make_engine(256, 1);
  EXPECT_THROW(engine.add({}), Error);
  GenerationRequest bad = story(1, 5, 3);
  bad.prompt[1] = 2048;
  EXPECT_THROW(engine.add(bad), Error);
  EXPECT_THROW(engine.add(story(1, 5, 256)), Error);
  EXPECT_NO_THROW(engine.add(story(1, 5, 255)));
}

TEST(Engine, MaxTokensIsCutToTheContextAndEndsWithLength) {
  Engine engine = make_engine(128, 1);
  const RequestId id = engine.add(story(3, 100000, 100));
  const auto got = run_all(engine)[id];
  EXPECT_EQ(got.tokens.size(), 28u);
  EXPECT_EQ(got.finish, FinishReason::length);
}

TEST(LoadedModel, FairyTellsAStoryInWholeCharacters) {
  const auto model = load_model(source_dir() / "models/fairy");
  EXPECT_EQ(model->recommended.temperature, 1.0);
  Engine engine(model->config(), model->weights, {});
  GenerationRequest r;
  r.prompt = {model->config().bos_id};
  model->tokenizer.encode("Once upon a time", text::AddedTokens::recognise, r.prompt);
  r.sampling.temperature = 0;
  r.max_tokens = 24;
  TextStream stream(model->tokenizer, {});
  std::string text;
  engine.add(std::move(r));
  while (engine.step([&](const GenerationEvent& e) { text += stream.push(e.token.token).content; })) {
  }
  text += stream.finish().content;
  EXPECT_NE(text.find(" there "), std::string::npos) << text;
}

TEST(TextStream, AnIdWithoutATokenShowsAsAReplacementCharacter) {
  const auto tokenizer = text::Tokenizer::load(source_dir() / "models/fairy/tokenizer.json");
  std::vector<int32_t> ids;
  tokenizer.encode("fairy", text::AddedTokens::recognise, ids);
  TextStream stream(tokenizer, {});
  std::string text;
  for (int32_t id : ids) text += stream.push(id).content;
  text += stream.push(tokenizer.vocab_size() + 7).content;
  for (int32_t id : ids) text += stream.push(id).content;
  text += stream.finish().content;
  EXPECT_EQ(text,
            "fairy\xEF\xBF\xBD"
            "fairy");
}

}  // namespace
}  // namespace fathom::test
