// The DSpark draft against tests/reference/ref.py: features, window rows, drafts and confidence at eight positions.
#include "model/dspark.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cache/model_support.h"
#include "formats/safetensors.h"
#include "ops/exact_rows.h"

namespace fathom::test {
namespace {

int32_t largest(size_t, int64_t, std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class Draft : public testing::TestWithParam<const char*> {};

TEST_P(Draft, FeaturesWindowsDraftsAndConfidenceMatchTheGoldens) {
  const SafetensorsFile g(source_dir() / "tests/golden/dspark.safetensors");
  const auto ids = g.copy<int32_t>("ids"), where = g.copy<int32_t>("positions"), next = g.copy<int32_t>("next_token");
  const auto drafts = g.copy<int32_t>("drafts");
  const auto confidence = g.copy<float>("confidence");
  const auto& config = Fairy::get().checkpoint.config();
  const auto& weights = Fairy::get().weights;
  const auto stages = static_cast<int>(weights.dspark->stages.size());
  const bool exact = std::string(GetParam()) == "ref";
  const auto table = ops::op_table(GetParam());

  Transformer model(config, weights, table, true);
  Dspark draft(config, weights, table);
  Cache cache(config, CacheBudget{1024, 1, -1, stages});
  StepPlan plan;
  const SequenceId id = cache.create();
  ASSERT_TRUE(cache.reserve(id, static_cast<int64_t>(ids.size())));
  const SegmentRequest request{id, ids, WantLogits::none};
  const auto& out = model.step(plan.build(config, cache, {&request, 1}), cache.layers());
  cache.commit(id, static_cast<int64_t>(ids.size()));
  const auto rings = cache.layers().subspan(static_cast<size_t>(config.num_layers));

  auto features = g.copy<bf16>("features");  // the golden ones, so that each part is tested from exact inputs
  double error = 0, norm = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    const double want = to_float(features[i]), got = to_float(out.features.data[i]);
    error += (want - got) * (want - got), norm += want * want;
  }
  EXPECT_LT(std::sqrt(error / norm), 0.05) << "features, end to end: the noise of six blocks; see below for exactness";

  const auto width = static_cast<int64_t>(features.size() / ids.size());
  std::vector<int32_t> rows(ids.size()), positions(ids.size());
  for (size_t p = 0; p < ids.size(); ++p)
    rows[p] = cache.window_row(id, static_cast<int64_t>(p)), positions[p] = static_cast<int32_t>(p);
  int64_t done = 0;
  int differing = 0;
  for (size_t i = 0; i < where.size(); ++i) {
    const int64_t p = where[i], count = p + 1 - done;
    draft.push(View<const bf16, 2>(&features[static_cast<size_t>(done * width)], count, width),
               View<const int32_t, 1>(&positions[static_cast<size_t>(done)], count),
               View<const int32_t, 1>(&rows[static_cast<size_t>(done)], count), rings);
    done = p + 1;
    const auto first = static_cast<size_t>(std::max<int64_t>(0, p - config.window + 1));
    const Dspark::Start start{next[i],
                              static_cast<int32_t>(p),
                              std::span(rows).subspan(first, static_cast<size_t>(p + 1) - first),
                              {},
                              config.dspark->block_size};
    const auto got = draft.propose({&start, 1}, rings, largest).at(0);
    for (size_t k = 0; k < got.tokens.size(); ++k) {
      const size_t at = i * got.tokens.size() + k;
      if (got.tokens[k] != drafts[at]) {
        ++differing;  // later places follow from this one
        break;
      }
      EXPECT_NEAR(got.confidence_logit[k], confidence[at], exact ? 1e-5 : 0.03) << "position " << p << " place " << k;
    }
  }
  EXPECT_LE(differing, exact ? 0 : 1);

  for (int s = 0; s < stages; ++s) {
    const auto ring = g.copy<bf16>("ring" + std::to_string(s));
    size_t wrong = 0;
    for (size_t p = ids.size() - 128; p < ids.size(); ++p) {
      float row[ops::kHeadDim];
      ops::exact::read_kv_row(rings[static_cast<size_t>(s)].window, ops::RowFormat::v4, rows[p], row);
      for (size_t c = 0; c < ops::kHeadDim; ++c) wrong += to_bf16(row[c]) != ring[p % 128 * ops::kHeadDim + c];
    }
    EXPECT_LE(wrong, exact ? 0u : 16u) << "stage " << s;
  }
}

TEST_P(Draft, FeaturesAreTheStreamMeansBehindTheTargetLayers) {
  const SafetensorsFile g(source_dir() / "tests/golden/layerwise.safetensors");
  const auto ids = g.copy<int32_t>("ids");
  const auto& config = Fairy::get().checkpoint.config();
  const auto& targets = config.dspark->target_layers;
  Transformer model(config, Fairy::get().weights, ops::op_table(GetParam()), true);
  Cache cache(config, CacheBudget{1024, 1, -1, 0});
  StepPlan plan;
  const SequenceId id = cache.create();
  ASSERT_TRUE(cache.reserve(id, static_cast<int64_t>(ids.size())));
  const SegmentRequest request{id, ids, WantLogits::none};
  const auto& batch = plan.build(config, cache, {&request, 1});
  const int64_t d = config.hidden_size;
  for (size_t k = 0; k < targets.size(); ++k) {
    auto& act = model.begin(batch);
    const auto in = g.copy<bf16>("streams" + std::to_string(targets[k]));
    std::copy(in.begin(), in.end(), act.streams.data);
    model.run_blocks(batch, cache.layers(), targets[k], targets[k] + 1);
    double error = 0, norm = 0;
    for (int64_t t = 0; t < act.streams.size[0]; ++t) {
      for (int64_t i = 0; i < d; ++i) {
        double want = 0;
        for (int64_t s = 0; s < config.hc_streams; ++s) want += to_float(act.streams(t, s, i)) / config.hc_streams;
        const double got = to_float(act.features(t, static_cast<int64_t>(k) * d + i));
        error += (want - got) * (want - got), norm += want * want;
      }
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(error / norm), 0.003) << "layer " << targets[k] << ": more than the rounding to bf16";
  }
}

TEST_P(Draft, IsTheSameForASequenceAloneAndAmongOthers) {
  const auto& config = Fairy::get().checkpoint.config();
  const auto& weights = Fairy::get().weights;
  const auto table = ops::op_table(GetParam());
  const auto stages = static_cast<int>(weights.dspark->stages.size());
  Transformer model(config, weights, table, true);
  Dspark draft(config, weights, table);
  Cache cache(config, CacheBudget{2048, 4, -1, stages});
  const auto rings = cache.layers().subspan(static_cast<size_t>(config.num_layers));
  std::mt19937 rng(3);
  std::vector<std::vector<int32_t>> rows;
  std::vector<Dspark::Start> starts;
  for (const size_t length : {1, 7, 150, 300}) {
    std::vector<int32_t> ids(length);
    for (auto& id : ids) id = static_cast<int32_t>(rng() % 2000);
    const SequenceId id = cache.create();
    ASSERT_TRUE(cache.reserve(id, static_cast<int64_t>(length)));
    StepPlan plan;
    const SegmentRequest request{id, ids, WantLogits::none};
    const StepBatch& batch = plan.build(config, cache, {&request, 1});
    const auto& out = model.step(batch, cache.layers());
    draft.push(out.features, batch.position, batch.window_slot, rings);
    cache.commit(id, static_cast<int64_t>(length));
    auto& seen = rows.emplace_back();
    for (size_t p = length - std::min<size_t>(length, 128); p < length; ++p)
      seen.push_back(cache.window_row(id, static_cast<int64_t>(p)));
    starts.push_back({static_cast<int32_t>(rng() % 2000), static_cast<int32_t>(length - 1), {}, {}, 0});
  }
  for (size_t i = 0; i < starts.size(); ++i) starts[i].window_rows = rows[i], starts[i].most = i == 1 ? 2 : 5;
  const auto together = draft.propose(starts, rings, largest);
  ASSERT_EQ(together.size(), starts.size());
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto alone = draft.propose({&starts[i], 1}, rings, largest).at(0);
    EXPECT_EQ(alone.tokens.size(), i == 1 ? 2u : 5u);
    EXPECT_EQ(alone.tokens, together[i].tokens) << "sequence " << i;
    EXPECT_EQ(alone.confidence_logit, together[i].confidence_logit) << "sequence " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Draft, testing::Values("ref", "cpu"),
                         [](const auto& i) { return std::string(i.param); });

}  // namespace
}  // namespace fathom::test
