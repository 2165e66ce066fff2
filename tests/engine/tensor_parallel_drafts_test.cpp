// Drafts of a model in two parts: the same tokens as without, and the same bits in both caches.
#include <cstring>

#include "base/error.h"
#include "engine/draft_check.h"
#include "engine/draft_support.h"

namespace fathom::test {
namespace {

LoadOptions with_drafts(int ranks) {
  LoadOptions load;
  load.drafts = true, load.shard.size = ranks;
  return load;
}

/// Fairy over two ranks with its draft stages, loaded once.
const LoadedModel& halves() {
  static const auto model =
      load_model(open_model({(source_dir() / "models/fairy").string(), {}, 2}), ops::host_device(), with_drafts(2));
  return *model;
}

std::vector<GenerationRequest> some_requests() {
  std::mt19937 rng(8);
  std::vector<GenerationRequest> out(kSanitized ? 2 : 5);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].prompt = random_ids(rng, std::array<size_t, 5>{1, 40, 122, 130, 251}[i]);
    out[i].max_tokens = kSanitized ? 8 : 30;
    out[i].sampling.seed = i, out[i].sampling.temperature = i % 2 ? 0.7 : 0, out[i].sampling.top_logprobs = 0;
  }
  return out;
}

std::map<RequestId, Result> run(Engine& engine) {
  for (const auto& r : some_requests()) engine.add(r);
  return run_all(engine);
}

TEST(DraftsOfParts, ChangeNoToken) {
  EngineOptions o;
  o.max_sequences = 3, o.chunk_tokens = 100;
  Engine plain(halves().config(), halves().weights, o);
  const auto want = run(plain);
  for (const int32_t speculate : {3, 5, -1}) {
    if (kSanitized && speculate != 3) continue;
    o.speculate = speculate;
    Engine engine(halves().config(), halves().weights, o);
    const auto got = run(engine);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [id, w] : want) EXPECT_EQ(got.at(id).tokens, w.tokens) << speculate << " drafts, request " << id;
    const SpeculationStats s = engine.stats().speculation;
    EXPECT_GT(s.offered, 0);
    if (speculate > 0) {
      EXPECT_GT(s.accepted, 0);
      EXPECT_LT(engine.stats().steps, plain.stats().steps);
    }
    EXPECT_EQ(s.failed + s.refused, 0);
  }
}

TEST(DraftsOfParts, AreAboutThoseOfTheWholeModel) {
  EngineOptions o;
  o.speculate = 3;
  Engine parts(halves().config(), halves().weights, o);
  Engine whole(Fairy::get().checkpoint.config(), Fairy::get().weights, o);
  // What one rank rounds and two add up differently turns few drafts, and few tokens.
  std::vector<int64_t> accepted;
  for (Engine* engine : {&parts, &whole}) {
    GenerationRequest r;
    r.prompt = halves().tokenizer.encode("Once upon a time there was a king", text::AddedTokens::as_text);
    r.max_tokens = kSanitized ? 20 : 100, r.sampling.temperature = 0;
    engine->add(r);
    run_all(*engine);
    accepted.push_back(engine->stats().speculation.accepted);
  }
  EXPECT_GT(accepted[0] * 2, accepted[1]);
  EXPECT_GT(accepted[1] * 2, accepted[0]);
}

TEST(DraftsOfParts, LeaveTheSameBitsOnAllRanks) {
  EngineOptions o;
  o.max_sequences = 3, o.speculate = 5;
  Engine engine(halves().config(), halves().weights, o);
  run(engine);
  const Cache& cache = engine.cache();
  ASSERT_EQ(cache.ranks(), 2);
  const auto first = cache.layers(0), second = cache.layers(1);
  ASSERT_EQ(first.size(), static_cast<size_t>(halves().config().num_layers + draft_stages(halves().weights)));
  int64_t rows = 0;
  for (size_t i = static_cast<size_t>(halves().config().num_layers); i < first.size(); ++i) {
    for (int32_t row = 0; row < cache.windows().total() * Cache::kWindowPage; ++row) {
      if (!cache.draft_row(row)) continue;
      ++rows;
      ASSERT_EQ(row_hash(first[i], row), row_hash(second[i], row)) << "stage " << i << " row " << row;
    }
  }
  EXPECT_GT(rows, kSanitized ? 30 : 300);
}

TEST(DraftsOfParts, AreComparedByTheSelfCheck) {
  const CheckResult r = drafts_change_nothing(halves(), {"cpu", 4});
  EXPECT_EQ(r.verdict, Verdict::passed) << r.detail;
}

TEST(DraftsOfParts, OfAnMtpBlockAreRefusedBeforeLoading) {
  try {
    load_model(open_model({"", "fairy,drafts=mtp", 2}), ops::host_device(), with_drafts(2));
    FAIL() << "two ranks cannot run it";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the MTP block needs the whole model on one device"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace fathom::test
