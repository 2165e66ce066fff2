// Batches that are filled up to a fixed size, on the processor: what a recorded step computes.
#include <gtest/gtest.h>

#include "cache/model_support.h"
#include "model/batch_memory.h"

namespace fathom::test {
namespace {

std::vector<std::vector<float>> rows_of(const View<float, 2>& logits, int64_t rows) {
  std::vector<std::vector<float>> out;
  for (int64_t r = 0; r < rows; ++r) out.emplace_back(&logits(r, 0), &logits(r, 0) + logits.size[1]);
  return out;
}

/// A model and three sequences of different lengths, each about to take one token.
struct Decoding {
  const ModelConfig& config = Fairy::get().checkpoint.config();
  Transformer model{config, Fairy::get().weights, ops::op_table("cpu")};
  Cache cache{config, {2048, 4}};
  StepPlan plan;
  std::vector<int32_t> prompt = std::vector<int32_t>(131, 7);
  std::vector<SequenceId> sequences;

  Decoding() {
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(10 + i * 13 % 200);
    for (size_t length : {1, 30, 127}) {
      sequences.push_back(cache.create());
      cache.reserve(sequences.back(), 200);
      const SegmentRequest request{sequences.back(), std::span(prompt).first(length), WantLogits::none};
      model.step(plan.build(config, cache, {&request, 1}), cache.layers());
      cache.commit(sequences.back(), static_cast<int64_t>(length));
    }
  }
  /// Every sequence's next token, `step` tokens behind its prompt.
  const StepBatch& next(size_t step) {
    std::vector<SegmentRequest> requests;
    for (SequenceId id : sequences) requests.push_back({id, std::span(prompt).subspan(step, 1), WantLogits::last});
    return plan.build(config, cache, requests);
  }
  void commit() {
    for (SequenceId id : sequences) cache.commit(id, 1);
  }
};

TEST(BatchMemory, ABatchThatIsFilledUpGivesTheSameBitsAndWritesNothingMore) {
  Decoding plain, filled;
  BatchMemory memory(*ops::host_device());
  for (size_t step = 0; step < 9; ++step) {  // across completed entries of both ratios
    const auto want = rows_of(plain.model.step(plain.next(step), plain.cache.layers()).logits, 3);
    plain.commit();
    const StepBatch& batch = filled.next(step);
    const auto shape = decode_shape(batch);
    ASSERT_TRUE(shape.has_value());
    EXPECT_EQ(shape->tokens, 4);
    const StepBatch& placed = memory.place(batch, *shape);
    EXPECT_EQ(placed.ids.size[0], 4);
    const Activations& act = filled.model.begin(placed);
    filled.model.embed(placed);
    filled.model.run_blocks(placed, filled.cache.layers(), 0, filled.config.num_layers);
    filled.model.head(placed);
    EXPECT_EQ(rows_of(act.logits, 3), want) << "step " << step;
    filled.commit();
  }
  EXPECT_EQ(memory.generation(), 1);  // the arrays never moved
}

TEST(BatchMemory, OnlyBatchesOfSingleTokensHaveAShape) {
  Decoding d;
  EXPECT_TRUE(decode_shape(d.next(0)).has_value());
  const SegmentRequest chunk{d.sequences[0], std::span(d.prompt).first(2), WantLogits::last};
  EXPECT_FALSE(decode_shape(d.plan.build(d.config, d.cache, {&chunk, 1})).has_value());
  const SegmentRequest silent{d.sequences[0], std::span(d.prompt).first(1), WantLogits::none};
  EXPECT_FALSE(decode_shape(d.plan.build(d.config, d.cache, {&silent, 1})).has_value());
}

TEST(BatchMemory, ShapesOfAnEngineCoverItsBatchesAndContexts) {
  const auto shapes = decode_shapes(5, 3000);
  const BatchShape last{6, 16, 32};
  EXPECT_EQ(shapes.front(), (BatchShape{1, 4, 8}));
  EXPECT_EQ(shapes.back(), last);
  EXPECT_EQ(shapes.size(), 4u * 3u);  // 1, 2, 4, 6 tokens; 4, 8, 16 pages
}

TEST(BatchMemory, AnIdleBatchWritesNothing) {
  Decoding d, untouched;
  IdleBatch idle(d.config, 5, 5, 1024);
  d.model.step(idle.batch, d.cache.layers());
  const auto got = rows_of(d.model.step(d.next(0), d.cache.layers()).logits, 3);
  EXPECT_EQ(got, rows_of(untouched.model.step(untouched.next(0), untouched.cache.layers()).logits, 3));
}

}  // namespace
}  // namespace fathom::test
