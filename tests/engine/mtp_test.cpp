// The MTP block of preview checkpoints: what it computes, and that its drafts change nothing but the speed.
#include "model/mtp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cache/model_support.h"
#include "engine/draft_support.h"
#include "engine/engine_support.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"

namespace fathom::test {
namespace {

LoadOptions with_drafts() {
  LoadOptions o;
  o.drafts = true;
  return o;
}

/// The built-in small model with an MTP block, loaded once.
const LoadedModel& small() {
  static const auto model = load_model(open_model({"", "fairy,seed=5,drafts=mtp"}), ops::host_device(), with_drafts());
  return *model;
}

template <typename T>
View<const T, 1> view_of(const std::vector<T>& v) {
  return View<const T, 1>(v.data(), v.size());
}

/// x of every token by the reference operations, one token and stream at a time.
std::vector<bf16> block_input(View<const bf16, 3> streams, const std::vector<int32_t>& next) {
  const ModelConfig& c = small().config();
  const MtpWeights& w = *small().weights.mtp;
  const int64_t d = c.hidden_size;
  const ops::OpTable table = ops::op_table("ref");
  const auto project = [&](const bf16* x, View<const bf16, 1> norm, const ops::Fp8Weight& weight) {
    std::vector<e4m3> codes(static_cast<size_t>(d));
    std::vector<e8m0> scale(static_cast<size_t>(d / 128));
    std::vector<bf16> y(static_cast<size_t>(d));
    const View<e4m3, 2> codes_view(codes.data(), 1, d);
    const View<e8m0, 2> scale_view(scale.data(), 1, d / 128);
    table.quantize->run({View<const bf16, 2>(x, 1, d), norm, static_cast<float>(c.rms_eps), codes_view, scale_view},
                        {});
    ops::LinearFp8Args a;
    a.x = codes_view, a.x_scale = scale_view;
    a.part[a.parts++] = {weight, View<bf16, 2>(y.data(), 1, d)};
    table.linear_fp8->run(a, {});
    return y;
  };
  std::vector<bf16> out;
  for (int64_t t = 0; t < streams.size[0]; ++t) {
    const auto e = project(small().weights.embed[next[static_cast<size_t>(t)]].data, w.enorm, w.e_proj);
    for (int64_t k = 0; k < streams.size[1]; ++k) {
      const auto h = project(&streams(t, k, 0), w.hnorm, w.h_proj);
      for (size_t i = 0; i < e.size(); ++i) out.push_back(to_bf16(to_float(e[i]) + to_float(h[i])));
    }
  }
  return out;
}

/// Logits of the block at every token, as a backbone of one layer gives them that is fed x in place of embeddings.
std::vector<std::vector<float>> block_logits(const std::vector<bf16>& x, std::span<const int32_t> ids, Cache& cache,
                                             SequenceId id, const ModelConfig& one) {
  Weights w = small().weights;
  w.blocks = {w.mtp->block}, w.head_mix = w.mtp->head, w.mtp.reset();
  Transformer model(one, w, ops::op_table("ref"));
  StepPlan plan;
  EXPECT_TRUE(cache.reserve(id, static_cast<int64_t>(ids.size())));
  const SegmentRequest request{id, ids, WantLogits::all};
  const StepBatch& batch = plan.build(one, cache, {&request, 1});
  Activations& act = model.begin(batch);
  std::copy(x.begin(), x.end(), act.streams.data);
  model.run_blocks(batch, cache.layers(), 0, 1);
  model.head(batch);
  std::vector<std::vector<float>> out;
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto row = act.logits[static_cast<int64_t>(t)];
    out.emplace_back(row.data, row.data + row.size[0]);
  }
  cache.commit(id, static_cast<int64_t>(ids.size()));
  return out;
}

class MtpBlock : public testing::TestWithParam<const char*> {};

TEST_P(MtpBlock, GivesTheLogitsAndWindowRowsOfABlockFedWithItsInput) {
  constexpr size_t kTokens = kSanitized ? 20 : 150;
  const ModelConfig& c = small().config();
  const bool exact = std::string(GetParam()) == "ref";
  std::mt19937 rng(2);
  const auto ids = random_ids(rng, kTokens + 1);
  const std::vector<int32_t> fed(ids.begin(), ids.end() - 1), next(ids.begin() + 1, ids.end());
  Transformer model(c, small().weights, ops::op_table("ref"));
  Mtp mtp(c, small().weights, ops::op_table(GetParam()));
  Cache cache(c, CacheBudget{1024, 1, -1, 1});
  StepPlan plan;
  const SequenceId id = cache.create();
  ASSERT_TRUE(cache.reserve(id, kTokens));
  const SegmentRequest request{id, fed, WantLogits::none};
  const StepBatch& batch = plan.build(c, cache, {&request, 1});
  const Activations& out = model.step(batch, cache.layers());
  cache.commit(id, kTokens);

  ModelConfig one = c;
  one.num_layers = 1, one.compress_ratios = {0}, one.num_hash_layers = 0;
  Cache alone(one, CacheBudget{1024, 1, -1, 0});
  const SequenceId other = alone.create();
  const auto want = block_logits(block_input(out.streams, next), fed, alone, other, one);

  const std::vector<int32_t> ends{0, static_cast<int32_t>(kTokens / 2), static_cast<int32_t>(kTokens - 1)};
  const LayerCache& ring = cache.layers()[static_cast<size_t>(c.num_layers)];
  mtp.push({out.streams, view_of(next), batch.position, batch.window_slot, view_of(ends)}, ring);
  std::vector<std::vector<int32_t>> rows;
  std::vector<Mtp::Start> starts;
  for (size_t i = 0; i < ends.size(); ++i) {
    auto& seen = rows.emplace_back();
    for (int64_t p = std::max(0, ends[i] - c.window + 1); p <= ends[i]; ++p) seen.push_back(cache.window_row(id, p));
    starts.push_back({static_cast<int64_t>(i), next[static_cast<size_t>(ends[i])], ends[i], {}, {}});
  }
  for (size_t i = 0; i < starts.size(); ++i) starts[i].window_rows = rows[i];
  size_t first = 0;  // which end the first start is
  const auto largest = [&](size_t i, std::span<const float> logits) {
    const auto& w = want[static_cast<size_t>(ends[first + i])];
    double error = 0, norm = 0;
    for (size_t v = 0; v < w.size(); ++v) error += std::pow(logits[v] - w[v], 2), norm += std::pow(w[v], 2);
    EXPECT_LE(std::sqrt(error / norm), exact ? 0 : 0.02) << "end " << first + i;
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  };
  const auto together = mtp.propose(starts, ring, largest);
  for (first = 0; first < starts.size(); ++first)
    EXPECT_EQ(mtp.propose({&starts[first], 1}, ring, largest), std::vector<int32_t>{together[first]}) << "alone";
  size_t wrong = 0;
  for (size_t p = 0; p < kTokens; ++p) {
    const auto at = static_cast<int64_t>(p);
    wrong += row_hash(ring, cache.window_row(id, at)) != row_hash(alone.layers()[0], alone.window_row(other, at));
  }
  EXPECT_LE(wrong, exact ? 0 : kTokens / 8) << "rows that differ";
}

INSTANTIATE_TEST_SUITE_P(Ops, MtpBlock, testing::Values("ref", "cpu"),
                         [](const auto& i) { return std::string(i.param); });

/// A sequence in a cache of its own, fed step by step.
struct Fed {
  Fed()
      : model(small().config(), small().weights, ops::op_table("cpu")),
        mtp(small().config(), small().weights, ops::op_table("cpu")) {
    id = cache.create();
  }
  /// Feeds `tokens`, of which the first `right` belong to `truth`, and takes the others back.
  void step(std::span<const int32_t> tokens, size_t right, std::span<const int32_t> truth) {
    const auto length = static_cast<size_t>(cache.length(id));
    ASSERT_TRUE(cache.reserve(id, static_cast<int64_t>(tokens.size())));
    const SegmentRequest request{id, tokens, WantLogits::none};
    const StepBatch& batch = plan.build(small().config(), cache, {&request, 1});
    const Activations& out = model.step(batch, cache.layers());
    cache.commit(id, static_cast<int64_t>(tokens.size()));
    cache.rollback(id, static_cast<int64_t>(length + right));
    std::vector<int32_t> next(tokens.size(), -1), ends{static_cast<int32_t>(right) - 1};
    for (size_t i = 0; i < right; ++i) next[i] = truth[length + i + 1];
    mtp.push({out.streams, view_of(next), batch.position, batch.window_slot, view_of(ends)}, ring());
  }
  const LayerCache& ring() const { return cache.layers()[static_cast<size_t>(small().config().num_layers)]; }

  Transformer model;
  Mtp mtp;
  Cache cache{small().config(), CacheBudget{1024, 1, -1, 1}};
  StepPlan plan;
  SequenceId id;
};

TEST(MtpDrafts, LeaveTheWindowOfTheBlockAsItIsWithoutThemForAnyPatternOfRightAndWrong) {
  std::mt19937 rng(6);
  constexpr size_t kTokens = kSanitized ? 75 : 300;  // whole steps of 25
  const auto truth = random_ids(rng, kTokens + 8);
  Fed plain, drafted;
  for (size_t p = 0; p < kTokens; p += 25) plain.step(std::span(truth).subspan(p, 25), 25, truth);
  while (static_cast<size_t>(drafted.cache.length(drafted.id)) < kTokens) {
    const auto length = static_cast<size_t>(drafted.cache.length(drafted.id));
    const size_t drafts = rng() % 4, right = 1 + rng() % (1 + drafts);
    std::vector<int32_t> tokens(truth.begin() + static_cast<int64_t>(length),
                                truth.begin() + static_cast<int64_t>(length + right));
    while (tokens.size() < 1 + drafts) tokens.push_back(static_cast<int32_t>(rng() % 2000));
    const size_t room = kTokens - length;
    tokens.resize(std::min(tokens.size(), room));
    drafted.step(tokens, std::min(right, room), truth);
  }
  for (size_t p = kTokens - std::min<size_t>(kTokens, 128); p < kTokens; ++p) {
    const auto at = static_cast<int64_t>(p);
    EXPECT_EQ(row_hash(plain.ring(), plain.cache.window_row(plain.id, at)),
              row_hash(drafted.ring(), drafted.cache.window_row(drafted.id, at)))
        << "position " << p;
  }
}

/// The model's own block, every other draft of which is replaced by the token that plain decoding gave.
class Helped : public DraftSource {
 public:
  Helped(const std::vector<std::vector<int32_t>>& truth, uint32_t seed)
      : own_(mtp_source(small().config(), small().weights, ops::op_table("cpu"))), truth_(truth), rng_(seed) {}
  int64_t depth() const override { return own_->depth(); }
  int rings() const override { return own_->rings(); }
  bool wants_next() const override { return own_->wants_next(); }
  void push(const StepBatch&, const Activations&, std::span<const LayerCache>) override { FAIL(); }
  void follow(const StepBatch& batch, const Activations& out, View<const int32_t, 1> next,
              std::span<const LayerCache> rings) override {
    own_->follow(batch, out, next, rings);
  }
  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache> rings,
                             const Choose& choose) override {
    auto out = own_->propose(starts, rings, choose);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].size(), 1u) << "no draft";
      const auto next = static_cast<size_t>(starts[i].position) + 2;
      for (const auto& t : truth_)
        if (next < t.size() && t[next - 1] == starts[i].token && rng_() % 2) out[i].tokens = {t[next]};
    }
    return out;
  }
  void set_recorder(Recorder*) override {}

 private:
  std::unique_ptr<DraftSource> own_;
  std::vector<std::vector<int32_t>> truth_;
  std::mt19937 rng_;
};

std::vector<GenerationRequest> requests() {
  std::mt19937 rng(9);
  std::vector<GenerationRequest> out(kSanitized ? 2 : 5);
  for (size_t i = 0; i < out.size(); ++i) {
    GenerationRequest& r = out[i];
    r.prompt = random_ids(rng, 1 + 70 * i);
    r.max_tokens = kSanitized ? 8 : 30 + static_cast<int64_t>(i);
    r.sampling.seed = i, r.sampling.top_logprobs = 0;
    if (i % 2 == 0) r.sampling.temperature = 0;
    if (i == 3) r.sampling.top_k = 20, r.sampling.repetition_penalty = 1.2;
  }
  return out;
}

std::map<RequestId, Result> run(int32_t speculate, std::unique_ptr<DraftSource> drafts, SpeculationStats* stats) {
  EngineOptions o;
  o.cache_tokens = 2048, o.max_sequences = 3, o.chunk_tokens = 64, o.speculate = speculate;
  Engine engine(small().config(), small().weights, o, nullptr, std::move(drafts));
  for (const auto& r : requests()) engine.add(r);
  auto out = run_all(engine);
  if (stats) *stats = engine.stats().speculation;
  return out;
}

TEST(MtpDrafts, ChangeNoToken) {
  const auto plain = run(0, nullptr, nullptr);
  std::vector<std::vector<int32_t>> truth;
  const auto all = requests();
  for (size_t i = 0; i < all.size(); ++i) {
    truth.push_back(all[i].prompt);
    const auto& tokens = plain.at(static_cast<RequestId>(i + 1)).tokens;
    truth.back().insert(truth.back().end(), tokens.begin(), tokens.end());
  }
  const auto expect_same = [&](const std::map<RequestId, Result>& drafted) {
    ASSERT_EQ(plain.size(), drafted.size());
    for (const auto& [id, p] : plain) {
      EXPECT_EQ(p.tokens, drafted.at(id).tokens) << "request " << id;
      EXPECT_EQ(p.finish, drafted.at(id).finish) << "request " << id;
    }
  };
  SpeculationStats s;
  expect_same(run(1, nullptr, &s));
  EXPECT_GT(s.offered, 0);
  EXPECT_EQ(s.offered_at.size(), 1u);
  EXPECT_EQ(s.failed + s.refused, 0);
  expect_same(run(1, std::make_unique<Helped>(truth, 1), &s));
  EXPECT_GT(s.accepted, s.offered / 4);
  EXPECT_LT(s.accepted, s.offered);
  expect_same(run(-1, nullptr, nullptr));
  expect_same(run(4, nullptr, &s));  // as 1: the block has no more to say
  EXPECT_EQ(s.offered_at.size(), 1u);
}

TEST(MtpDrafts, AreToldApartFromOthersInWhatIsSaidOfTheirNumber) {
  const ModelConfig& c = small().config();
  CheckpointLayout layout = small().source->layout();
  EXPECT_EQ(layout.draft, DraftKind::mtp);
  EXPECT_EQ(few_drafts(c, layout, 1), "");
  EXPECT_EQ(few_drafts(c, layout, -1), "");
  EXPECT_NE(few_drafts(c, layout, 3).find("MTP block of this model drafts one token"), std::string::npos);
  layout.draft = DraftKind::none;
  EXPECT_NE(few_drafts(c, layout, -1).find("no draft stages"), std::string::npos);
  EXPECT_EQ(few_drafts(c, layout, 0), "");
  const auto& fairy = Fairy::get().checkpoint.config();
  layout.draft = DraftKind::dspark;
  EXPECT_EQ(few_drafts(fairy, layout, 5), "");
  EXPECT_NE(few_drafts(fairy, layout, 8).find("DSpark draft of this model proposes 5"), std::string::npos);
}

}  // namespace
}  // namespace fathom::test
