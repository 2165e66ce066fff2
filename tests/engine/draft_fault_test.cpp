// Drafts that cannot be what the checkpoint's makers meant are reported, not hidden.
#include <array>
#include <numeric>

#include "engine/draft_shares.h"
#include "engine/draft_support.h"

namespace fathom::test {
namespace {

GenerationRequest endless(uint32_t seed, int64_t tokens) {
  std::mt19937 rng(seed);
  GenerationRequest r;
  r.prompt = random_ids(rng, 12), r.max_tokens = tokens;
  r.sampling.temperature = 0, r.prefix.on = false;
  return r;
}

struct Outcome {
  std::vector<int32_t> tokens;  // of all requests
  SpeculationStats stats;
};

/// Four requests, with drafts as `change` makes them; none of the model's own without.
Outcome run(std::function<void(const DraftStart&, Draft&)> change, int64_t tokens, int32_t speculate = 5) {
  auto drafts = std::make_unique<HandledDraft>();
  drafts->change = std::move(change);
  EngineOptions o;
  o.speculate = speculate;
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o, nullptr, std::move(drafts));
  for (uint32_t i = 0; i < 4; ++i) engine.add(endless(i, tokens));
  Outcome out;
  for (const auto& [id, r] : run_all(engine)) out.tokens.insert(out.tokens.end(), r.tokens.begin(), r.tokens.end());
  out.stats = engine.stats().speculation;
  return out;
}

TEST(DraftFault, OfManyDraftsNotOneRight) {
  // The model's own drafts, each moved to the next id: what stages of another model look like.
  const auto wrong = [](const DraftStart&, Draft& d) {
    for (auto& t : d.tokens) t = (t + 1) % 2000;
  };
  const Outcome few = run(wrong, 5), many = run(wrong, 24);
  ASSERT_LT(few.stats.offered, 200);
  EXPECT_EQ(draft_fault(few.stats), "") << "too few to tell";
  ASSERT_GE(many.stats.offered, 256);
  EXPECT_EQ(many.stats.accepted, 0);
  EXPECT_EQ(draft_fault(many.stats),
            "of " + std::to_string(many.stats.offered) +
                " drafted tokens not one was right: the draft stages do not belong to this model");
  const Outcome own = run({}, 24);
  EXPECT_EQ(draft_fault(own.stats), "");
  EXPECT_EQ(own.tokens, many.tokens);
}

TEST(DraftFault, OneRightDraftIsNone) {
  SpeculationStats s;
  s.proposals = 1000, s.offered = 100'000, s.accepted = 1;
  EXPECT_EQ(draft_fault(s), "");
}

#ifndef FATHOM_SANITIZED  // hundreds of proposals
TEST(DraftFault, EveryIdOutsideTheVocabulary) {
  size_t next = 0;
  const Outcome own = run({}, 70);
  const Outcome r = run(
      [&](const DraftStart&, Draft& d) {
        d.tokens.assign(d.size(), std::array{-7, 2048, 1 << 30}[next++ % 3]);
      },
      70);
  EXPECT_EQ(r.tokens, own.tokens);
  EXPECT_GE(r.stats.refused, 256) << "each proposal is counted";
  EXPECT_EQ(r.stats.proposals, 0) << "nothing was left of any";
  EXPECT_EQ(r.stats.offered, 0);
  EXPECT_NE(draft_fault(r.stats).find("the draft stages are damaged"), std::string::npos) << draft_fault(r.stats);
}
#endif

TEST(DraftFault, NotOfOneIdOutsideTheVocabularyBehindRightOnes) {
  const Outcome own = run({}, 30);
  const Outcome r = run(
      [](const DraftStart&, Draft& d) {
        if (d.size() > 2) d.tokens[2] = 5000;
      },
      30);
  EXPECT_EQ(r.tokens, own.tokens);
  EXPECT_GT(r.stats.refused, 0);
  EXPECT_GT(r.stats.accepted, 0);
  EXPECT_EQ(r.stats.offered_at[2], 0) << "the refused one and those behind it are not verified";
  EXPECT_EQ(draft_fault(r.stats), "");
}

TEST(DraftDepth, OfAutoIsBoundedToo) {
  ModelConfig config = Fairy::get().checkpoint.config();
  config.dspark->block_size = 2 * kMostDrafts;
  EngineOptions o;
  o.speculate = -1, o.draft_acceptance = 1;
  Engine engine(config, Fairy::get().weights, o);
  engine.add(endless(1, 60));
  DraftUse use;
  while (engine.step([&](const GenerationEvent& e) { use = e.drafts; })) {
  }
  const SpeculationStats s = engine.stats().speculation;
  EXPECT_EQ(s.offered_at.size(), size_t{kMostDrafts});
  EXPECT_GT(s.offered, 0);
  EXPECT_EQ(std::accumulate(s.offered_at.begin(), s.offered_at.end(), int64_t{0}), s.offered);
  EXPECT_EQ(std::accumulate(use.offered_at.begin(), use.offered_at.end(), int64_t{0}), use.offered);
}

TEST(DraftShares, AreThoseOfThePlacesThatWereVerified) {
  const std::vector<int64_t> offered{10, 4, 3, 0}, accepted{8, 1, 0, 0};
  EXPECT_EQ(shares_by_place(offered, accepted), "80, 25, 0 %");
  EXPECT_EQ(shares_by_place({}, {}), "");
  EXPECT_EQ(shares_by_place(std::vector<int64_t>{0}, std::vector<int64_t>{0}), "");
}

}  // namespace
}  // namespace fathom::test
