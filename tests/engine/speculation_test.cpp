// Speculation: whatever the drafts are, a request's tokens, log probabilities and cache are those of plain decoding.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "cache/model_support.h"
#include "engine/engine_support.h"
#include "text/constrain/json_grammar.h"

namespace fathom::test {
namespace {

constexpr int64_t kDepth = 7;

/// Proposes the tokens that plain decoding gave, as far as it is told to be right.
class Script : public DraftSource {
 public:
  explicit Script(uint32_t seed) : rng_(seed) {}

  /// What follows each prompt; proposals find their place by the last token's position in the sequence.
  std::vector<std::vector<int32_t>> truth;  // prompt and output
  double right = 0.7;                       // probability of a draft being right
  double outside = 0;                       // and of an id that no vocabulary has
  bool nan = false;                         // logits that are not numbers
  int64_t pushed = 0;

  int64_t depth() const override { return kDepth; }
  void push(const StepBatch& batch, const Activations&, std::span<const LayerCache>) override {
    pushed += batch.ids.size[0];
  }
  void set_recorder(Recorder*) override {}

  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache>,
                             const Choose& choose) override {
    std::vector<Draft> out;
    for (size_t i = 0; i < starts.size(); ++i) {
      const std::vector<float> logits(2048, std::numeric_limits<float>::quiet_NaN());
      if (nan && choose(i, 0, logits) < 0)
        out.emplace_back();
      else
        out.push_back(draft_of(starts[i]));
    }
    return out;
  }

 private:
  Draft draft_of(const DraftStart& start) {
    Draft d;
    const auto next = static_cast<size_t>(start.position) + 2;
    const auto* tokens = &truth.front();
    for (const auto& t : truth)
      if (next - 1 < t.size() && t[next - 1] == start.token) tokens = &t;
    const auto n = static_cast<size_t>(1 + rng_() % static_cast<uint32_t>(start.most));
    for (size_t i = next; i < next + n; ++i) {
      int32_t token = i < tokens->size() && chance(right) ? (*tokens)[i] : static_cast<int32_t>(rng_() % 2000);
      if (chance(outside)) token = rng_() % 2 ? -5 : 1 << 30;
      d.tokens.push_back(token), d.confidence.push_back(0.5f);
    }
    return d;
  }
  bool chance(double p) { return std::uniform_real_distribution<>()(rng_) < p; }
  std::mt19937 rng_;
};

std::vector<int32_t> random_prompt(std::mt19937& rng, size_t n) {
  std::vector<int32_t> out(n);
  for (auto& t : out) t = static_cast<int32_t>(rng() % 2000) + 3;
  return out;
}

struct Collected {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  int64_t offered = 0, accepted = 0, cached = 0;
};

std::map<RequestId, Collected> collect(Engine& engine) {
  std::map<RequestId, Collected> out;
  while (engine.step([&](const GenerationEvent& e) {
    Collected& c = out[e.request];
    EXPECT_EQ(c.finish, FinishReason::none) << "an event after the last";
    if (e.token.token >= 0) c.tokens.push_back(e.token.token), c.logprobs.push_back(e.token.logprob);
    c.finish = e.finish, c.offered = e.drafts.offered, c.accepted = e.drafts.accepted, c.cached = e.cached_tokens;
    EXPECT_EQ(e.error, "");
  }))
    check_books(engine);
  return out;
}

/// A few requests of different sampling, lengths and ends.
std::vector<GenerationRequest> some_requests(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<GenerationRequest> out(kSanitized ? 2 : 5);
  for (size_t i = 0; i < out.size(); ++i) {
    GenerationRequest& r = out[i];
    r.prompt = random_prompt(rng, 1 + rng() % 280);
    r.max_tokens = 1 + static_cast<int64_t>(rng() % (kSanitized ? 12 : 60));
    r.sampling.top_logprobs = 0;
    r.sampling.seed = rng();
    if (i % 2 == 0) r.sampling.temperature = 0;
    if (i == 1) r.sampling.top_p = 0.9, r.sampling.repetition_penalty = 1.2;
    if (i == 3) r.sampling.top_k = 20, r.sampling.frequency_penalty = 0.3, r.sampling.presence_penalty = 0.1;
    if (i == 4) r.stop_ids = {rng() % 2 ? 5 : 11}, r.min_tokens = 3;
  }
  return out;
}

EngineOptions small(uint32_t seed) {
  EngineOptions o;
  o.cache_tokens = seed % 3 == 0 ? 768 : 4096;  // the small one makes requests give way
  o.max_sequences = 1 + static_cast<int32_t>(seed % 4);
  o.chunk_tokens = seed % 2 ? 64 : 200;
  return o;
}

std::map<RequestId, Collected> run(const EngineOptions& o, const std::vector<GenerationRequest>& requests,
                                   std::unique_ptr<DraftSource> drafts = nullptr) {
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o, nullptr, std::move(drafts));
  for (const auto& r : requests) engine.add(r);
  return collect(engine);
}

void expect_same(const std::map<RequestId, Collected>& plain, const std::map<RequestId, Collected>& drafted) {
  ASSERT_EQ(plain.size(), drafted.size());
  for (const auto& [id, p] : plain) {
    const Collected& d = drafted.at(id);
    EXPECT_EQ(p.tokens, d.tokens) << "request " << id;
    EXPECT_EQ(p.logprobs, d.logprobs) << "request " << id;
    EXPECT_EQ(p.finish, d.finish) << "request " << id;
  }
}

/// Drafts for one request whose plain output is known, each right with that probability.
std::unique_ptr<Script> script_of(uint32_t seed, std::vector<int32_t> prompt, const std::vector<int32_t>& output,
                                  double right) {
  auto script = std::make_unique<Script>(seed);
  prompt.insert(prompt.end(), output.begin(), output.end());
  script->truth = {std::move(prompt)};
  script->right = right;
  return script;
}

class Speculation : public testing::TestWithParam<uint32_t> {};

TEST_P(Speculation, WithAnyPatternOfRightAndWrongDraftsGivesTheSameTokens) {
  const uint32_t seed = GetParam();
  const auto requests = some_requests(seed);
  EngineOptions o = small(seed);
  const auto plain = run(o, requests);
  auto script = std::make_unique<Script>(seed);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto all = requests[i].prompt;
    const auto& tokens = plain.at(static_cast<RequestId>(i + 1)).tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
    script->truth.push_back(all);
  }
  script->right = std::array{0.0, 0.5, 0.9, 1.0}[seed % 4];
  script->outside = seed % 5 == 0 ? 0.1 : 0;
  o.speculate = seed % 2 ? -1 : 5;
  expect_same(plain, run(o, requests, std::move(script)));
}

TEST_P(Speculation, WithTheDraftOfTheModelGivesTheSameTokens) {
  const auto requests = some_requests(GetParam() + 100);
  EngineOptions o = small(GetParam() + 1);
  const auto plain = run(o, requests);
  o.speculate = static_cast<int32_t>(GetParam() % 6) + 1;
  const auto drafted = run(o, requests);
  expect_same(plain, drafted);
  int64_t offered = 0;
  for (const auto& [id, d] : drafted) {
    offered += d.offered;
    EXPECT_LE(d.accepted, d.offered);
  }
  EXPECT_GT(offered, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Speculation, testing::Range(0u, kSanitized ? 2u : 8u));

TEST(Speculation, LeavesACacheThatLaterTurnsGoOnFrom) {
  std::mt19937 rng(4);
  GenerationRequest first;
  first.prompt = random_prompt(rng, 300), first.max_tokens = kSanitized ? 40 : 230;
  first.sampling.temperature = 0, first.sampling.top_logprobs = 0;
  EngineOptions o;
  o.max_sequences = 2;
  const auto plain = run(o, {first}).at(1);
  GenerationRequest second = first;
  second.prompt.insert(second.prompt.end(), plain.tokens.begin(), plain.tokens.end());
  const auto more = random_prompt(rng, 9);
  second.prompt.insert(second.prompt.end(), more.begin(), more.end());
  second.max_tokens = 20;
  EngineOptions cold = o;
  cold.prefix_cache = false;
  const auto want = run(cold, {second}).at(1);

  auto script = script_of(9, first.prompt, plain.tokens, 0.8);
  o.speculate = 6;
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o, nullptr, std::move(script));
  engine.add(first);
  const auto drafted = collect(engine).at(1);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_EQ(drafted.logprobs, plain.logprobs);
  EXPECT_GT(drafted.accepted, 0);
  EXPECT_LT(drafted.accepted, drafted.offered);
  engine.add(second);
  const auto got = collect(engine).at(2);
  EXPECT_GE(got.cached, 512 * !kSanitized);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logprobs, want.logprobs);
}

TEST(Speculation, KeepsTheFormOfTheOutput) {
  const auto tokenizer = text::Tokenizer::load(source_dir() / "models/fairy/tokenizer.json");
  const auto tokens = std::make_shared<const text::TokenTable>(tokenizer);
  const auto& config = Fairy::get().checkpoint.config();
  for (const double temperature : {0.0, 1.0}) {
    GenerationRequest r;
    r.prompt = tokenizer.encode("The king said:", text::AddedTokens::as_text);
    r.max_tokens = kSanitized ? 12 : 40;
    r.sampling.temperature = temperature, r.sampling.seed = 5, r.sampling.top_logprobs = 0;
    r.stop_ids.assign(config.eos_ids.begin(), config.eos_ids.end());
    const auto constrained = [&] {  // a constraint is of one engine's thread
      GenerationRequest out = r;
      out.constraint = std::make_shared<text::Constraint>(text::json_object_grammar(), tokens, r.stop_ids);
      return out;
    };
    const auto plain = run({}, {constrained()}).at(1);
    EngineOptions o;
    o.speculate = 5;
    const auto own = run(o, {constrained()}).at(1);
    EXPECT_EQ(own.tokens, plain.tokens);
    EXPECT_EQ(own.logprobs, plain.logprobs);
    EXPECT_GT(own.offered, 0);
    // The wrong ones leave the form.
    const auto scripted = run(o, {constrained()}, script_of(3, r.prompt, plain.tokens, 0.6)).at(1);
    EXPECT_EQ(scripted.tokens, plain.tokens);
    EXPECT_GT(scripted.accepted, 0);
    text::ConstraintMatcher matcher(constrained().constraint);
    for (int32_t token : own.tokens) ASSERT_TRUE(matcher.accept(token));
  }
}

TEST(Speculation, OfRightDraftsTakesFewerSteps) {
  std::mt19937 rng(5);
  GenerationRequest r;
  r.prompt = random_prompt(rng, 40), r.max_tokens = 49, r.sampling.temperature = 0;
  const auto plain = run({}, {r}).at(1);
  auto script = script_of(1, r.prompt, plain.tokens, 1);
  EngineOptions o;
  o.speculate = 7;
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o, nullptr, std::move(script));
  engine.add(r);
  const auto drafted = collect(engine).at(1);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_EQ(drafted.accepted, drafted.offered);
  const auto stats = engine.stats();
  EXPECT_EQ(stats.generated_tokens, 49);
  EXPECT_EQ(stats.steps, 49 - drafted.accepted);
  EXPECT_LT(stats.steps, 25);
  EXPECT_EQ(stats.speculation.accepted, drafted.accepted);
  EXPECT_EQ(stats.speculation.offered_at[0], stats.speculation.accepted_at[0]);
}

TEST(Speculation, CountsIdsOutsideTheVocabularyAndFailedProposals) {
  std::mt19937 rng(6);
  GenerationRequest r;
  r.prompt = random_prompt(rng, 20), r.max_tokens = 24, r.sampling.temperature = 0;
  const auto plain = run({}, {r}).at(1);
  for (const bool nan : {false, true}) {
    auto script = std::make_unique<Script>(2);
    script->truth = {r.prompt};
    script->outside = 1, script->nan = nan;
    EngineOptions o;
    o.speculate = 3;
    Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o, nullptr, std::move(script));
    engine.add(r);
    EXPECT_EQ(collect(engine).at(1).tokens, plain.tokens);
    const auto s = engine.stats().speculation;
    EXPECT_EQ(s.refused > 0, !nan);
    EXPECT_EQ(s.failed > 0, nan);
    EXPECT_EQ(s.offered, 0);
  }
}

TEST(Speculation, IsRefusedWhereThereAreNoDrafts) {
  EngineOptions o;
  const auto& config = Fairy::get().checkpoint.config();
  const Weights plain = load_weights(Fairy::get().checkpoint, make_host_memory(), {});
  o.speculate = 2;
  EXPECT_THROW(Engine(config, plain, o), Error);
  o.speculate = -1;
  EXPECT_FALSE(Engine(config, plain, o).speculates());
  o.speculate = 9;
  EXPECT_THROW(Engine(config, Fairy::get().weights, o), Error);
}

}  // namespace
}  // namespace fathom::test
