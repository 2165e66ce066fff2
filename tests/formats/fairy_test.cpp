// The in-box model opens, and its header fields, sizes and contents are what its files say.
#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/checkpoint.h"

namespace fathom {
namespace {

const std::filesystem::path fairy = FATHOM_SOURCE_DIR "/models/fairy";

TEST(Fairy, OpensWithAllItsTensors) {
  const Checkpoint checkpoint(fairy);
  EXPECT_EQ(checkpoint.tensors().size(), 1057u);
  EXPECT_EQ(checkpoint.total_bytes(), 23853664u);
  EXPECT_EQ(checkpoint.files().size(), 4u);
  EXPECT_EQ(checkpoint.names().size(), 1057u);
  EXPECT_TRUE(checkpoint.has("embed.weight"));
  EXPECT_FALSE(checkpoint.has("model.embed.weight"));
  const TensorInfo& embed = checkpoint.info("embed.weight");
  EXPECT_EQ(embed.dtype, DType::bf16);
  EXPECT_EQ(embed.shape, (std::vector<int64_t>{2048, 256}));
  EXPECT_EQ(embed.count(), 2048 * 256);
  EXPECT_EQ(checkpoint.bytes(embed).size(), 2048u * 256 * 2);
}

TEST(Fairy, ConfigIsReadByItsHuggingFaceNames) {
  const ModelConfig c = read_config(fairy / "config.json");
  EXPECT_EQ(c.vocab_size, 2048);
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.num_layers, 6);
  EXPECT_EQ(c.num_heads, 4);
  EXPECT_EQ(c.num_experts, 16);
  EXPECT_EQ(c.experts_per_token, 4);
  EXPECT_EQ(c.num_hash_layers, 1);
  EXPECT_EQ(c.compress_ratios, (std::vector{0, 4, 128, 4, 128, 4, 0, 0}));
  EXPECT_EQ(c.max_positions, 16384);
  EXPECT_EQ(c.eos_ids, std::vector{1});
  EXPECT_EQ(c.pad_id, 2);
  EXPECT_EQ(c.hc_mixes(), 24);
  EXPECT_EQ(c.nope_dim(), 448);
  EXPECT_EQ(c.expert_dtype, ExpertDtype::fp4);
  ASSERT_TRUE(c.dspark);
  EXPECT_EQ(c.dspark->markov_rank, 64);
  EXPECT_EQ(c.dspark->target_layers, (std::vector{3, 4, 5}));
  EXPECT_TRUE(c.unknown_fields.empty());
}

TEST(Fairy, CopiesAreTypedAndCheckedAgainstTheTensor) {
  const Checkpoint checkpoint(fairy);
  const std::vector<float> sink = checkpoint.copy<float>("layers.0.attn.attn_sink");
  EXPECT_EQ(sink.size(), 4u);
  const std::vector<int64_t> ids = checkpoint.copy<int64_t>("layers.0.ffn.gate.tid2eid");
  EXPECT_EQ(ids.size(), 2048u * 4);
  for (int64_t id : ids) ASSERT_TRUE(id >= 0 && id < 16);
  EXPECT_EQ(checkpoint.copy<e2m1x2>("layers.0.ffn.experts.0.w1.weight").size(), 128u * 128);
  EXPECT_THROW(checkpoint.copy<float>("embed.weight"), Error);
  EXPECT_THROW(checkpoint.copy<float>("nothing"), Error);
  std::vector<float> small(3);
  EXPECT_THROW(checkpoint.copy_to<float>("layers.0.attn.attn_sink", std::span(small)), Error);
}

TEST(Fairy, EveryGoldenFileParses) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FATHOM_SOURCE_DIR "/tests/golden")) {
    if (entry.path().extension() != ".safetensors") continue;
    EXPECT_GT(SafetensorsFile(entry.path()).tensors().size(), 0u) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 10);
}

TEST(Fairy, ReleasedPagesAreReadAgain) {
  const Checkpoint checkpoint(fairy);
  const std::vector<bf16> before = checkpoint.copy<bf16>("embed.weight");
  checkpoint.release("embed.weight");
  checkpoint.release_all();
  EXPECT_EQ(checkpoint.copy<bf16>("embed.weight"), before);
}

}  // namespace
}  // namespace fathom
