// Byte for byte: whatever was drafted and taken back, the cache is that of the tokens alone; and drafts of a request
// that starts from the prefix cache read what is there, and nothing else.
#include <array>

#include "engine/draft_support.h"

namespace fathom::test {
namespace {

const ModelConfig& config() {
  return Fairy::get().checkpoint.config();
}

GenerationRequest greedy(std::vector<int32_t> prompt, int64_t tokens) {
  GenerationRequest r;
  r.prompt = std::move(prompt), r.max_tokens = tokens;
  r.sampling.temperature = 0;
  return r;
}

/// A request that runs, and all that its sequence had in the cache behind any step.
struct Watched {
  std::vector<int32_t> tokens;  // prompt and output
  CacheImage image;
  bool ended = false;
};

/// Runs requests that all start at once in an empty engine, which numbers their sequences from 0 on.
std::vector<Watched> watch(Engine& engine, const std::vector<GenerationRequest>& requests) {
  std::vector<Watched> out;
  std::map<RequestId, size_t> number;
  for (const auto& r : requests) {
    number[engine.add(r)] = out.size();
    out.push_back({r.prompt, {}, false});
  }
  while (engine.step([&](const GenerationEvent& e) {
    Watched& w = out[number.at(e.request)];
    if (e.token.token >= 0) w.tokens.push_back(e.token.token);
    w.ended = e.finish != FinishReason::none;
    EXPECT_EQ(e.error, "");
  })) {
    check_books(engine);
    for (size_t i = 0; i < out.size(); ++i)
      if (!out[i].ended) out[i].image.look(config(), engine.cache(), SequenceId{static_cast<int32_t>(i)});
  }
  return out;
}

/// Lengths beside the borders of entries (4), pages (64, 256), the window and blocks (128).
size_t near_a_border(std::mt19937& rng) {
  const size_t border = std::array<size_t, 6>{4, 64, 128, 192, 256, 384}[rng() % 6], back = rng() % 14;
  return border > back ? border - back : 1;
}

class CacheAfterDrafts : public testing::TestWithParam<uint32_t> {};

TEST_P(CacheAfterDrafts, IsThatOfTheTokensAloneBehindEveryStep) {
  const uint32_t seed = GetParam();
  std::mt19937 rng(seed);
  auto drafts = std::make_unique<HandledDraft>();
  drafts->most = 1 + static_cast<int64_t>(rng() % kMostDrafts);
  // Of the right length and others, the model's and junk; forced to be right or wrong, or verified.
  drafts->change = [&](const DraftStart& start, Draft& d) {
    const auto n = static_cast<size_t>(1 + static_cast<int64_t>(rng()) % start.most);
    while (d.size() < n) d.tokens.push_back(static_cast<int32_t>(rng() % 2000)), d.confidence.push_back(0.5f);
    d.shorten(static_cast<int64_t>(n));
    if (rng() % 3 == 0) d.tokens[rng() % n] = static_cast<int32_t>(rng() % 2000);
  };
  EngineOptions o;
  o.cache_tokens = 4096, o.max_sequences = 3, o.chunk_tokens = seed % 2 ? 96 : 300;
  o.speculate = kMostDrafts;
  o.draft_acceptance = std::array{-1.0, 0.3, 0.7, 0.9, 1.0}[seed % 5];
  Engine engine(config(), Fairy::get().weights, o, nullptr, std::move(drafts));
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < (kSanitized ? 1 : 3); ++i) {
    requests.push_back(greedy(random_ids(rng, near_a_border(rng)), 24 + static_cast<int64_t>(rng() % 24)));
    if (i == 1) requests.back().sampling.temperature = 1, requests.back().sampling.seed = seed;
  }
  const auto all = watch(engine, requests);
  const SpeculationStats s = engine.stats().speculation;
  EXPECT_GT(s.offered, 20);
  if (o.draft_acceptance < 1) {
    EXPECT_LT(s.accepted, s.offered);
  }
  if (o.draft_acceptance >= 0.3) {
    EXPECT_GT(s.accepted, 0);
  }
  for (const Watched& w : all) {
    EXPECT_TRUE(w.ended);
    EXPECT_GT(w.image.seen(), 8 * std::min<size_t>(w.tokens.size(), 128));
    w.image.expect_part_of(image_of(w.tokens));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheAfterDrafts, testing::Range(1u, kSanitized ? 2u : 13u));

/// One request at a time: its sequence has number 0.
struct Turns {
  explicit Turns(bool prefix_cache, std::vector<HandledDraft::Asked>* record, int32_t speculate = 5) {
    auto handled = std::make_unique<HandledDraft>();
    handled->record = record;
    draft = handled.get();
    EngineOptions o;
    o.cache_tokens = 4096, o.max_sequences = 1, o.prefix_cache = prefix_cache, o.speculate = speculate,
    o.snapshots = 64;
    engine = std::make_unique<Engine>(config(), Fairy::get().weights, o, nullptr, std::move(handled));
  }
  Watched run(const GenerationRequest& r) { return watch(*engine, {r}).front(); }

  HandledDraft* draft = nullptr;
  std::unique_ptr<Engine> engine;
};

std::vector<int32_t> joined(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

TEST(DraftsOfAHit, AreThoseOfAColdStart) {
  std::mt19937 rng(11);
  const auto first = greedy(random_ids(rng, 230), 60);
  std::vector<HandledDraft::Asked> warm_asked, cold_asked;
  Turns warm(true, &warm_asked), cold(false, &cold_asked);
  const auto before = warm.run(first);
  const std::span<const int32_t> all(before.tokens);
  // The next turn, behind everything; a little before the end; behind a block; inside a block that has no tail.
  for (const size_t kept : {all.size(), all.size() - 3, size_t{256}, size_t{200}}) {
    const auto next = greedy(joined(all.first(kept), random_ids(rng, 5)), kSanitized ? 10 : 30);
    warm_asked.clear(), cold_asked.clear();
    const int64_t found = warm.engine->stats().cached_tokens;
    const auto got = warm.run(next), want = cold.run(next);
    EXPECT_GT(warm.engine->stats().cached_tokens - found, 100) << "no hit at " << kept;
    EXPECT_EQ(got.tokens, want.tokens);
    got.image.expect_part_of(image_of(got.tokens));
    ASSERT_EQ(warm_asked.size(), cold_asked.size());
    ASSERT_FALSE(warm_asked.empty());
    for (size_t i = 0; i < warm_asked.size(); ++i) {
      EXPECT_EQ(warm_asked[i].position, cold_asked[i].position);
      EXPECT_EQ(warm_asked[i].rows, cold_asked[i].rows);
      EXPECT_EQ(warm_asked[i].draft.tokens, cold_asked[i].draft.tokens);
      EXPECT_EQ(warm_asked[i].draft.confidence, cold_asked[i].draft.confidence);
    }
  }
}

/// Makes all rows of the stages that no draft may read not-a-number.
void poison(const Cache& cache) {
  for (const LayerCache& stage : cache.layers().subspan(static_cast<size_t>(config().num_layers)))
    for (int32_t row = 0; row < cache.windows().total() * Cache::kWindowPage; ++row) {
      if (cache.draft_row(row)) continue;
      std::memset(stage.window.row_data(stage.format, row), 0xFF, ops::kV4DataBytes);
      std::memset(stage.window.row_scales(row), 0xFF, ops::kV4ScaleBytes);
    }
}

/// Every row that a proposal saw is that of a token of its window; how many of the window were not there.
int64_t expect_rows_of(const HandledDraft::Asked& asked, const CacheImage& truth) {
  const int64_t window = config().window, first = std::max<int64_t>(0, asked.position - window + 1);
  int64_t gaps = 0;
  for (size_t s = 0; s < asked.rows.size(); ++s) {
    size_t next = 0;
    const auto layer = static_cast<size_t>(config().num_layers) + s;
    for (int64_t p = first; p <= asked.position; ++p) {
      const bool seen = next < asked.rows[s].size() && asked.rows[s][next] == truth.at(CacheImage::window, layer, p);
      next += seen, gaps += !seen;
    }
    EXPECT_EQ(next, asked.rows[s].size()) << "a row of no token of the window, at " << asked.position;
  }
  return gaps;
}

#ifndef FATHOM_SANITIZED  // hundreds of steps
TEST(DraftsOfAHit, OnWhatAPauseOfDraftsComputedReadNoRowThatWasNotWritten) {
  std::mt19937 rng(12);
  std::vector<HandledDraft::Asked> asked;
  Turns turns(true, &asked, -1);
  turns.draft->delay = std::chrono::milliseconds(25);  // drafts do not pay
  const auto trunk = turns.run(greedy(random_ids(rng, 150), 60));
  ASSERT_FALSE(asked.empty()) << "they were tried";
  const int64_t kept = turns.draft->pushed;
  EXPECT_LT(kept, static_cast<int64_t>(trunk.tokens.size()) - 20) << "and given up, with all that they need";
  poison(turns.engine->cache());
  turns.draft->delay = std::chrono::milliseconds(0);
  for (int i = 0; i < 60 && turns.draft->pushed == kept; ++i) turns.run(greedy(random_ids(rng, 3), 25));
  ASSERT_GT(turns.draft->pushed, kept) << "never kept again";
  asked.clear();
  const int64_t found = turns.engine->stats().cached_tokens;
  const auto next = turns.run(greedy(joined(trunk.tokens, random_ids(rng, 4)), 120));
  EXPECT_EQ(turns.engine->stats().cached_tokens - found, static_cast<int64_t>(trunk.tokens.size()) - 1);
  const CacheImage truth = image_of(next.tokens);
  next.image.expect_part_of(truth);
  int64_t gaps = 0;
  for (const auto& a : asked) {
    gaps += expect_rows_of(a, truth);
    EXPECT_FALSE(a.draft.empty());
    for (const float c : a.draft.confidence) EXPECT_TRUE(c >= 0 && c <= 1) << "a row that is not a number was read";
  }
  ASSERT_FALSE(asked.empty()) << "no draft was made behind the hit";
  EXPECT_GT(gaps, 20) << "all rows were there: the case does not test anything";
  EXPECT_EQ(turns.engine->stats().speculation.failed, 0);
}
#endif

}  // namespace
}  // namespace fathom::test
