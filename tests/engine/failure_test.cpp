// What happens to the other requests, the cache and the engine when something goes wrong in the middle of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "base/error.h"
#include "cache/model_support.h"
#include "engine/engine_support.h"

namespace fathom::test {
namespace {

constexpr int32_t kPoison = 100;

/// Fairy with an embedding that makes every token behind id kPoison NaN.
struct Poisoned {
  Weights weights = Fairy::get().weights;
  std::vector<bf16> table;

  Poisoned() {
    const auto& embed = weights.embed;
    table.assign(embed.data, embed.data + embed.count());
    const auto row = table.begin() + kPoison * embed.stride[0];
    std::fill(row, row + embed.size[1], to_bf16(std::numeric_limits<float>::quiet_NaN()));
    weights.embed = View<const bf16, 2>(table.data(), embed.size[0], embed.size[1]);
  }
};

EngineOptions small(const char* ops = "cpu") {
  EngineOptions o;
  o.ops = ops, o.cache_tokens = 1024, o.max_sequences = 4, o.chunk_tokens = 64;
  return o;
}

GenerationRequest request(std::vector<int32_t> prompt, int64_t max_tokens = 6) {
  GenerationRequest r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.max_tokens = max_tokens;
  return r;
}

class Failure : public testing::TestWithParam<const char*> {};

TEST_P(Failure, NanLogitsEndTheirRequestAloneAndTheOthersGetTheirTokens) {
  const Poisoned poisoned;
  const auto& config = Fairy::get().checkpoint.config();
  Engine healthy(config, Fairy::get().weights, small(GetParam()));
  const RequestId alone = healthy.add(request({0, 7, 8, 9}));
  const auto want = run_all(healthy)[alone].tokens;
  ASSERT_EQ(want.size(), 6u);

  Engine engine(config, poisoned.weights, small(GetParam()));
  const RequestId before = engine.add(request({0, 7, 8, 9})), bad = engine.add(request({0, 7, kPoison})),
                  after = engine.add(request({0, 7, 8, 9}));
  auto got = run_all(engine);
  EXPECT_EQ(got[bad].finish, FinishReason::failed);
  EXPECT_NE(got[bad].error.find("nan"), std::string::npos) << got[bad].error;
  EXPECT_TRUE(got[bad].tokens.empty());
  for (RequestId id : {before, after}) {
    EXPECT_EQ(got[id].tokens, want);
    EXPECT_EQ(got[id].finish, FinishReason::length);
    EXPECT_EQ(got[id].error, "");
  }
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.stats().cache.sequences_free, 4);
}

INSTANTIATE_TEST_SUITE_P(Ops, Failure, testing::Values("cpu", "ref"),
                         [](const auto& i) { return std::string(i.param); });

TEST(Failure, NanStaysHarmlessBehindTheIndexerAndTheDenseEntries) {
  const Poisoned poisoned;
  Engine engine(Fairy::get().checkpoint.config(), poisoned.weights, small());
  std::vector<int32_t> prompt = {0, kPoison};
  while (prompt.size() < 420) prompt.push_back(3 + static_cast<int32_t>(prompt.size()));
  prompt.back() = kPoison;
  const RequestId bad = engine.add(request(prompt)), good = engine.add(request({0, 7, 8, 9}));
  auto got = run_all(engine);
  EXPECT_EQ(got[bad].finish, FinishReason::failed);
  EXPECT_EQ(got[good].finish, FinishReason::length);
}

TEST(Failure, ARequestWithoutAnyTokenLeftEndsAlone) {
  const auto& config = Fairy::get().checkpoint.config();
  Engine engine(config, Fairy::get().weights, small());
  GenerationRequest all_banned = request({0, 7, 8, 9});
  for (int32_t id = 0; id < config.vocab_size; ++id) all_banned.stop_ids.push_back(id);
  all_banned.min_tokens = 2;
  const RequestId bad = engine.add(all_banned), good = engine.add(request({0, 7, 8, 9}));
  auto got = run_all(engine);
  EXPECT_EQ(got[bad].finish, FinishReason::failed);
  EXPECT_EQ(got[good].tokens.size(), 6u);
}

TEST(Failure, AReportThatThrowsLeavesTheEngineUsable) {
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, small());
  const RequestId first = engine.add(request({0, 7, 8, 9}, 1)), second = engine.add(request({0, 7, 8, 9}, 6));
  EXPECT_THROW(engine.step([](const GenerationEvent&) { throw std::runtime_error("reader gone"); }),
               std::runtime_error);
  engine.cache().check();
  auto got = run_all(engine);  // both events of the first step are lost, nothing else
  EXPECT_EQ(got.count(first), 0u);
  EXPECT_EQ(got[second].tokens.size(), 5u);
  EXPECT_EQ(got[second].finish, FinishReason::length);
  EXPECT_EQ(engine.stats().cache.sequences_free, 4);
}

TEST(Failure, ReportMayAddAndCancelRequests) {
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, small());
  const RequestId first = engine.add(request({0, 7, 8, 9}, 50));
  RequestId added = 0;
  std::map<RequestId, FinishReason> ended;
  while (engine.step([&](const GenerationEvent& e) {
    if (e.finish != FinishReason::none) ended[e.request] = e.finish;
    if (added != 0) return;
    added = engine.add(request({0, 7}, 3));
    engine.cancel(first);
  })) {
  }
  EXPECT_EQ(ended[first], FinishReason::cancelled);
  EXPECT_EQ(ended[added], FinishReason::length);
}

TEST(Failure, IdsOutsideTheVocabularyAreRefusedWhereverTheyStand) {
  const auto& config = Fairy::get().checkpoint.config();
  Engine engine(config, Fairy::get().weights, small());
  for (int32_t id : {-1, config.vocab_size, std::numeric_limits<int32_t>::max()}) {
    GenerationRequest stop = request({0, 7}), bias = request({0, 7});
    stop.stop_ids = {1, id};
    bias.sampling.logit_bias = {{id, 1.0}};
    EXPECT_THROW(engine.add(request({0, id})), Error) << id;
    EXPECT_THROW(engine.add(stop), Error) << id;
    EXPECT_THROW(engine.add(bias), Error) << id;
  }
  EXPECT_TRUE(engine.idle());
}

TEST(Failure, OptionsThatCannotWorkAreRefused) {
  const auto& config = Fairy::get().checkpoint.config();
  for (auto change : {+[](EngineOptions& o) { o.chunk_tokens = 0; }, +[](EngineOptions& o) { o.cache_tokens = 0; },
                      +[](EngineOptions& o) { o.max_sequences = -1; }}) {
    EngineOptions options = small();
    change(options);
    EXPECT_THROW(Engine(config, Fairy::get().weights, options), Error);
  }
}

}  // namespace
}  // namespace fathom::test
