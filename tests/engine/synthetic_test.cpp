// Models with generated weights, memory plans, and requests whose prompt is assumed, on the processor.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/fill.h"
#include "engine/engine_support.h"
#include "engine/layer_probe.h"
#include "engine/memory_plan.h"
#include "model/synthetic.h"

namespace fathom::test {
namespace {

std::string refusal(const std::string& description) {
  try {
    synthetic_source(description);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// The built-in small model, loaded once.
const LoadedModel& small() {
  static const auto model = load_model(open_model({"", "fairy,seed=3"}), ops::host_device());
  return *model;
}

EngineOptions options_for(int64_t context) {
  EngineOptions o;
  o.max_sequences = 3, o.cache_tokens = 3 * context, o.max_context = context, o.chunk_tokens = 32;
  o.prefix_cache = false;
  return o;
}

TEST(Synthetic, RefusesWhatItCannotMake) {
  EXPECT_NE(refusal("v5").find("there are v4-flash"), std::string::npos);
  EXPECT_NE(refusal("v4-flash,layers=44").find("from 1 to 43"), std::string::npos);
  EXPECT_NE(refusal("v4-flash,experts=5").find("from 6 to"), std::string::npos);
  EXPECT_NE(refusal("v4-flash,experts=many").find("must be a number"), std::string::npos);
  EXPECT_NE(refusal("v4-flash,colour=3").find("none of"), std::string::npos);
  EXPECT_NE(refusal("v4-flash,,").find("none of"), std::string::npos);
  EXPECT_EQ(refusal("v4-flash,layers=2,experts=8"), "");
}

TEST(Synthetic, HasTheTensorsOfTheRealModel) {
  const auto source = synthetic_source("v4-flash");
  EXPECT_NEAR(static_cast<double>(source->total_bytes()), 155.6e9, 2e9);
  EXPECT_EQ(source->info("layers.2.attn.indexer.wq_b.weight").shape, (std::vector<int64_t>{8192, 1024}));
  const auto pruned = synthetic_source("v4-flash,experts=160,layers=4");
  EXPECT_EQ(pruned->config().num_layers, 4);
  EXPECT_EQ(pruned->info("layers.3.ffn.gate.weight").shape, (std::vector<int64_t>{160, 4096}));
  EXPECT_THROW(pruned->info("layers.4.ffn.gate.weight"), Error);
}

TEST(Synthetic, TheSameDescriptionGivesTheSameModelAndAnotherSeedAnother) {
  const auto again = load_model(open_model({"", "fairy,seed=3"}), ops::host_device());
  const auto other = load_model(open_model({"", "fairy,seed=4"}), ops::host_device());
  const auto bytes = [](const LoadedModel& m) {
    const auto& w = m.weights.blocks[2].attn.wq_b.codes;
    return std::vector<uint8_t>(&w.data->bits, &w.data->bits + w.count());
  };
  EXPECT_EQ(bytes(*again), bytes(small()));
  EXPECT_NE(bytes(*other), bytes(small()));
}

TEST(Synthetic, ActivationsStayFiniteAndNearOneInEveryLayer) {
  Engine engine(small().config(), small().weights, options_for(256));
  GenerationRequest request;
  request.prompt = small().tokenizer.encode("Once upon a time", text::AddedTokens::as_text);
  request.max_tokens = 4;
  engine.add(request);
  const auto layers = probe_step(engine, [](const GenerationEvent&) {});
  ASSERT_EQ(layers.size(), 6u);
  for (const LayerReading& l : layers) {
    EXPECT_TRUE(l.finite) << l.layer;
    EXPECT_GT(l.stream_rms, 0.1);
    EXPECT_LT(l.stream_rms, 50);
    EXPECT_GT(l.output_rms, 0.01);
    EXPECT_LT(l.output_rms, 50);
    EXPECT_GT(l.distinct_experts, 4);
  }
  EXPECT_EQ(run_all(engine).begin()->second.tokens.size(), 3u);  // and one before
}

TEST(Synthetic, ItsTokenizerTakesAnyBytesAndShowsAnyId) {
  const auto& t = small().tokenizer;
  EXPECT_EQ(t.vocab_size(), small().config().vocab_size);
  const std::string text = "Gr\xC3\xBC\xC3\x9F Gott,\n\t1 + 1 = 2";
  const auto ids = t.encode(text, text::AddedTokens::as_text);
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(t.decode(ids), text);
  const std::vector<int32_t> last{small().config().vocab_size - 1};
  EXPECT_EQ(t.decode(last), " ~2047");
}

TEST(MemoryPlan, CountsWhatIsAllocatedLater) {
  const EngineOptions options = options_for(512);
  const auto device = ops::host_device();
  const MemoryPlan plan = plan_memory(*small().source, options, *device);
  const Engine engine(small().config(), small().weights, options);
  EXPECT_NEAR(static_cast<double>(plan.cache), static_cast<double>(engine.cache().usage().bytes),
              0.01 * static_cast<double>(plan.cache));  // other alignment
  EXPECT_NEAR(static_cast<double>(plan.weights), static_cast<double>(small().weights.memory->allocated()),
              0.03 * static_cast<double>(plan.weights));  // other alignment
  EXPECT_GE(static_cast<size_t>(plan.weights), weight_bytes(*small().source));
  EXPECT_GT(plan.workspaces, 0);
  EXPECT_GT(plan.recorded, 0);
}

TEST(MemoryPlan, RefusesWithTheNumbersBeforeLoading) {
  MemoryPlan plan;
  plan.weights = int64_t{90} << 30, plan.cache = int64_t{60} << 30;
  plan.device_total = int64_t{140} << 30, plan.device_free = int64_t{139} << 30;
  try {
    check_fits(plan, "v4-flash", *ops::host_device());
    FAIL() << "it does not fit";
  } catch (const Error& e) {
    const std::string what = e.what();
    for (const char* part : {"v4-flash", "weights 90.0 GiB", "cache 60.0 GiB", "139.0 GiB of 140.0 GiB"})
      EXPECT_NE(what.find(part), std::string::npos) << part << " in: " << what;
  }
  plan.cache = int64_t{40} << 30;
  EXPECT_NO_THROW(check_fits(plan, "v4-flash", *ops::host_device()));
}

TEST(AssumedPrompt, DecodesAtAContextThatNobodyComputed) {
  Engine engine(small().config(), small().weights, options_for(700));
  fill_cache(engine.cache(), *ops::host_device(), 1);
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request;
    request.prompt.assign(600, 20 + i);
    request.assumed = 599, request.prefix.on = false;
    request.max_tokens = 20;
    engine.add(std::move(request));
  }
  const auto results = run_all(engine);
  ASSERT_EQ(results.size(), 3u);
  for (const auto& [id, r] : results) {
    EXPECT_EQ(r.tokens.size(), 20u);
    EXPECT_EQ(r.finish, FinishReason::length);
    EXPECT_EQ(r.cached_tokens, 0);
  }
  EXPECT_EQ(engine.stats().prompt_tokens, 3);  // the last of each
  EXPECT_EQ(engine.cache().usage().entry_free, engine.cache().usage().entry_total);
}

}  // namespace
}  // namespace fathom::test
