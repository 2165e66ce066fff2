// The tensor inventory: published totals, the in-box model, and every way in which a checkpoint can disagree.
#include "formats/inventory.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace fathom {
namespace {

const std::string flash_config = FATHOM_SOURCE_DIR "/../shared/data/deepseek-v4-flash/config.json";

/// The published config of V4-Flash, written out from the specification's table.
ModelConfig flash() {
  ModelConfig c;
  c.vocab_size = 129280;
  c.hidden_size = 4096;
  c.num_layers = 43;
  c.num_heads = 64;
  c.q_lora_rank = 1024;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.num_experts = 256;
  c.experts_per_token = 6;
  c.moe_intermediate_size = 2048;
  c.num_hash_layers = 3;
  c.index_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.num_nextn_predict_layers = 1;
  c.compress_ratios = {0, 0};
  for (int layer = 2; layer < 43; ++layer) c.compress_ratios.push_back(layer % 2 == 0 ? 4 : 128);
  c.compress_ratios.push_back(0);
  return c;
}

ModelConfig pro() {
  ModelConfig c = flash();
  c.hidden_size = 7168;
  c.num_layers = 61;
  c.num_heads = 128;
  c.q_lora_rank = 1536;
  c.o_groups = 16;
  c.num_experts = 384;
  c.moe_intermediate_size = 3072;
  c.compress_ratios = {128, 128};
  for (int layer = 2; layer < 61; ++layer) c.compress_ratios.push_back(layer % 2 == 0 ? 4 : 128);
  c.compress_ratios.push_back(0);
  return c;
}

DsparkConfig dspark(const ModelConfig& c) {
  return {5, 256, 128799, {c.num_layers - 3, c.num_layers - 2, c.num_layers - 1}};
}

constexpr CheckpointLayout mtp_layout = {.draft = DraftKind::mtp, .draft_stages = 1};
constexpr CheckpointLayout dspark_layout = {.draft = DraftKind::dspark, .draft_stages = 3};

void expect_totals(const ModelConfig& config, const CheckpointLayout& layout, size_t count, uint64_t bytes) {
  const std::vector<ExpectedTensor> tensors = expected_tensors(config, layout);
  EXPECT_EQ(tensors.size(), count);
  EXPECT_EQ(total_bytes(tensors), bytes);
}

size_t count_of(const std::vector<ExpectedTensor>& tensors, DType dtype) {
  size_t n = 0;
  for (const ExpectedTensor& tensor : tensors) n += tensor.dtype == dtype;
  return n;
}

TEST(Inventory, FlashPreviewHasThePublishedTotals) {
  expect_totals(flash(), mtp_layout, 69187, 159609485896);
  const std::vector<ExpectedTensor> tensors = expected_tensors(flash(), mtp_layout);
  EXPECT_EQ(count_of(tensors, DType::bf16), 433u);
  EXPECT_EQ(count_of(tensors, DType::f32), 417u);
  EXPECT_EQ(count_of(tensors, DType::f8_e4m3), 375u);
  EXPECT_EQ(count_of(tensors, DType::f8_e8m0), 34167u);
  EXPECT_EQ(count_of(tensors, DType::i64), 3u);
  EXPECT_EQ(count_of(tensors, DType::i8), 33792u);
}

TEST(Inventory, Flash0731HasThePublishedTotals) {
  ModelConfig c = flash();
  c.dspark = dspark(c);
  expect_totals(c, dspark_layout, 72317, 166878536440);
  const std::vector<ExpectedTensor> tensors = expected_tensors(c, dspark_layout);
  uint64_t drafts = 0, draft_bytes = 0;
  for (const ExpectedTensor& tensor : tensors)
    if (tensor.name.starts_with("mtp.")) ++drafts, draft_bytes += tensor.bytes;
  EXPECT_EQ(drafts, 4705u);
  EXPECT_EQ(draft_bytes, 10862838300u);
}

TEST(Inventory, TheBackboneAndProHaveThePublishedTotals) {
  expect_totals(flash(), {}, 67612, 156015698140);
  expect_totals(pro(), mtp_layout, 145116, 864704792696);
  EXPECT_EQ(total_bytes(expected_tensors(pro(), {})), 850748205004u);
  ModelConfig c = pro();
  c.dspark = dspark(c);
  expect_totals(c, dspark_layout, 149782, 892595197672);
}

TEST(Inventory, APrunedExpertCountHasThePublishedTotals) {
  ModelConfig c = flash();
  c.num_experts = 160;
  c.dspark = dspark(c);
  expect_totals(c, dspark_layout, 45821, 107803320952);
}

TEST(Inventory, TheOfficialConfigFileGivesTheSameTotals) {
  if (!std::filesystem::exists(flash_config)) GTEST_SKIP() << "the official config.json is not here";
  const ModelConfig c = read_config(flash_config);
  expect_totals(c, mtp_layout, 69187, 159609485896);
  EXPECT_EQ(c.compress_ratios, flash().compress_ratios);
  EXPECT_EQ(c.expert_dtype, ExpertDtype::unstated);
  EXPECT_TRUE(c.unknown_fields.empty()) << c.unknown_fields[0];
}

TEST(Inventory, FairyPasses) {
  const Checkpoint checkpoint(FATHOM_SOURCE_DIR "/models/fairy");
  const CheckpointLayout layout = check_inventory(checkpoint.config(), checkpoint.tensors(), "fairy");
  EXPECT_EQ(layout.draft, DraftKind::dspark);
  EXPECT_EQ(layout.draft_stages, 2);
  EXPECT_EQ(layout.experts, WeightFormat::mxfp4);
  const std::vector<ExpectedTensor> tensors = expected_tensors(checkpoint.config(), layout);
  EXPECT_EQ(tensors.size(), 1057u);
  EXPECT_EQ(total_bytes(tensors), checkpoint.total_bytes());
}

TEST(Inventory, FairyHoldsOnlyHonestValuesAndSpoiltOnesAreFound) {
  const Checkpoint checkpoint(FATHOM_SOURCE_DIR "/models/fairy");
  const ModelConfig& c = checkpoint.config();
  for (const TensorInfo& tensor : checkpoint.tensors().all())
    EXPECT_NO_THROW(check_values(c, tensor, checkpoint.bytes(tensor))) << tensor.name;
  const std::pair<const char*, uint8_t> spoilt[] = {
      {"layers.3.ffn.experts.7.w2.scale", 255}, {"layers.0.ffn.gate.tid2eid", 16}, {"layers.1.attn.wq_a.weight", 0x7F}};
  for (const auto& [name, code] : spoilt) {
    const std::span<const std::byte> bytes = checkpoint.bytes(name);
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    copy[80] = std::byte{code};
    EXPECT_THROW(check_values(c, checkpoint.info(name), copy), Error) << name;
  }
}

/// A small model of this family, whose tables the tests below spoil.
ModelConfig small(bool with_dspark = true) {
  ModelConfig c = flash();
  c.vocab_size = 64;
  c.hidden_size = 256;
  c.num_layers = 3;
  c.num_heads = 4;
  c.q_lora_rank = 128;
  c.o_groups = 2;
  c.o_lora_rank = 128;
  c.num_experts = 2;
  c.experts_per_token = 1;
  c.moe_intermediate_size = 128;
  c.num_hash_layers = 1;
  c.compress_ratios = {0, 4, 128};
  if (with_dspark) c.dspark = DsparkConfig{5, 64, 0, {1, 2}};
  return c;
}

using Edit = std::function<void(std::vector<ExpectedTensor>&)>;

TensorTable table(std::vector<ExpectedTensor> tensors, const Edit& edit = {}) {
  if (edit) edit(tensors);
  TensorTable out;
  for (ExpectedTensor& tensor : tensors) out.add(std::move(tensor));
  return out;
}

ExpectedTensor& find(std::vector<ExpectedTensor>& tensors, std::string_view name) {
  for (ExpectedTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::logic_error("no such tensor: " + std::string(name));
}

Edit remove(std::string_view part) {
  return [=](auto& tensors) {
    std::erase_if(tensors, [&](const ExpectedTensor& t) { return t.name.find(part) != t.name.npos; });
  };
}

Edit reshape(std::string_view name, DType dtype, std::vector<int64_t> shape) {
  return [=](auto& tensors) {
    find(tensors, name).dtype = dtype;
    find(tensors, name).shape = shape;
  };
}

Edit insert(std::string name, DType dtype, std::vector<int64_t> shape) {
  return [=](auto& tensors) {
    ExpectedTensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensors.push_back(tensor);
  };
}

std::string complaint(const ModelConfig& c, const CheckpointLayout& layout, const Edit& edit) {
  try {
    check_inventory(c, table(expected_tensors(c, layout), edit), "m");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

constexpr CheckpointLayout two_stages = {.draft = DraftKind::dspark, .draft_stages = 2};

TEST(Inventory, EveryFormatOfExpertsIsRecognisedFromTheTensors) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::fp8_block, WeightFormat::nvfp4}) {
    ModelConfig c = small();
    CheckpointLayout layout = two_stages;
    layout.experts = format;
    layout.packed = format == WeightFormat::nvfp4   ? DType::u8
                    : format == WeightFormat::mxfp4 ? DType::i8
                                                    : DType::f8_e4m3;
    if (format == WeightFormat::fp8_block) layout.draft_experts = format, layout.draft_packed = DType::f8_e4m3;
    if (format == WeightFormat::nvfp4) c.quant = DeclaredQuant::modelopt_nvfp4;
    const CheckpointLayout found = check_inventory(c, table(expected_tensors(c, layout)), "m");
    EXPECT_EQ(found.experts, format);
    EXPECT_EQ(found.packed, layout.packed);
    EXPECT_EQ(found.draft_experts, layout.draft_experts);
    EXPECT_EQ(found.draft_stages, 2);
  }
}

TEST(Inventory, AScalarMayHaveTheShapeOfOneElement) {
  ModelConfig c = small();
  c.quant = DeclaredQuant::modelopt_nvfp4;
  CheckpointLayout layout = two_stages;
  layout.experts = WeightFormat::nvfp4;
  EXPECT_EQ(complaint(c, layout, reshape("layers.1.ffn.experts.1.w2.weight_scale_2", DType::f32, {1})), "no error");
  EXPECT_NE(complaint(c, layout, reshape("layers.1.ffn.experts.1.w2.weight_scale_2", DType::f32, {2})), "no error");
}

TEST(Inventory, MtpAndDsparkAreToldApartByTheirTensors) {
  EXPECT_EQ(check_inventory(small(false), table(expected_tensors(small(false), mtp_layout)), "m").draft,
            DraftKind::mtp);
  EXPECT_EQ(check_inventory(small(), table(expected_tensors(small(), two_stages)), "m").draft, DraftKind::dspark);
  ModelConfig none = small(false);
  none.num_nextn_predict_layers = 0;
  EXPECT_EQ(check_inventory(none, table(expected_tensors(none, {})), "m").draft, DraftKind::none);
}

struct Spoiled {
  std::string name;
  Edit edit;
  std::string complaint;
};

TEST(Inventory, EachDisagreementIsOneLineThatNamesIt) {
  const Spoiled cases[] = {
      {"missing", remove("layers.1.attn_norm"),
       "m: 235 tensors found, 236 expected: 1 missing (layers.1.attn_norm.weight)"},
      {"unused", insert("layers.0.attn.q_bias", DType::f32, {4}),
       "m: 237 tensors found, 236 expected: 1 used by no parameter (layers.0.attn.q_bias)"},
      {"several", remove("hc_ffn_fn"),
       "m: 231 tensors found, 236 expected: 5 missing (layers.0.hc_ffn_fn, layers.1.hc_ffn_fn, "
       "layers.2.hc_ffn_fn, ...)"},
      {"shape", reshape("layers.1.attn.compressor.ape", DType::f32, {4, 512}),
       "m: 236 tensors found, 236 expected: 1 of the wrong type or shape (layers.1.attn.compressor.ape is F32 [4, "
       "512], expected F32 [4, 1024])"},
      {"type", reshape("layers.0.ffn.gate.tid2eid", DType::i32, {64, 1}),
       "m: 236 tensors found, 236 expected: 1 of the wrong type or shape (layers.0.ffn.gate.tid2eid is I32 [64, 1], "
       "expected I64 [64, 1])"},
      {"two drafts", insert("mtp.0.e_proj.weight", DType::bf16, {256, 256}),
       "m: mtp.0 has both e_proj (the MTP block) and main_proj (DSpark): a mix of two drafts"},
      {"no draft", remove("mtp."), "m: the config has dspark fields, but there are no draft tensors (mtp.*)"},
      {"unknown draft", remove("mtp.0.main_"),
       "m: mtp.0 has neither e_proj (the MTP block) nor main_proj (DSpark): an unknown draft"},
      {"hole in stages", remove("mtp.0."), "m: mtp.1 has tensors, but mtp.0 has none"},
      {"stage name", insert("mtp.x.norm.weight", DType::bf16, {256}),
       "m: tensor mtp.x.norm.weight: not the name of a draft stage (mtp.0 to mtp.63)"},
      {"dense",
       [](auto& t) {
         remove("wq_a.scale")(t), reshape("layers.0.attn.wq_a.weight", DType::bf16, {128, 256})(t);
       },
       "m: the config's quantization_config says fp8 in 128x128 blocks, but layers.0.attn.wq_a is BF16"},
      {"scale shape", reshape("layers.2.ffn.experts.1.w3.scale", DType::f8_e8m0, {128, 16}),
       "m: layers.2.ffn.experts.1.w3.scale is F8_E8M0 [128, 16], but layers.2.ffn.experts.1.w3.weight is I8 [128, "
       "128], which as MXFP4 (E2M1, a UE8M0 scale per 32) needs F8_E8M0 [128, 8]"},
      {"mixed experts",
       [](auto& t) {
         reshape("layers.2.ffn.experts.1.w3.weight", DType::f8_e4m3, {128, 256})(t);
         reshape("layers.2.ffn.experts.1.w3.scale", DType::f8_e8m0, {1, 2})(t);
       },
       "m: layers.2.ffn.experts.1.w3 is FP8 (E4M3, a UE8M0 scale per 128x128) in F8_E4M3, but "
       "layers.0.ffn.experts.0.w1 is MXFP4 (E2M1, a UE8M0 scale per 32) in I8: a mix of two formats"},
      {"both scales", insert("layers.0.ffn.experts.0.w1.weight_scale", DType::f8_e4m3, {128, 16}),
       "m: layers.0.ffn.experts.0.w1: has both .scale (MXFP4 or FP8) and .weight_scale (NVFP4): a mix of two formats"},
      {"V3 scales", insert("layers.0.attn.wq_a.weight_scale_inv", DType::f32, {1, 2}),
       "m: layers.0.attn.wq_a.weight_scale_inv: the FP8 of DeepSeek-V3, which fathom does not support (V4 stores "
       ".scale, UE8M0)"},
      {"other format",
       [](auto& t) {
         remove("layers.0.ffn.experts.0.w1")(t);
         insert("layers.0.ffn.experts.0.w1.qweight", DType::i32, {32, 128})(t);
       },
       "m: layers.0.ffn.experts.0.w1.qweight: a weight format that fathom does not support"},
  };
  for (const Spoiled& c : cases) EXPECT_EQ(complaint(small(), two_stages, c.edit), c.complaint) << c.name;
}

TEST(Inventory, AConfigThatContradictsTheTensorsIsRefusedNamingBoth) {
  const auto with = [](const std::function<void(ModelConfig&)>& change, CheckpointLayout layout = two_stages) {
    ModelConfig c = small();
    const std::vector<ExpectedTensor> tensors = expected_tensors(c, layout);
    change(c);
    try {
      check_inventory(c, table(tensors), "m");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(with([](ModelConfig& c) { c.expert_dtype = ExpertDtype::fp8; }),
            "m: the config says expert_dtype fp8, but layers.0.ffn.experts.0.w1 is MXFP4 (E2M1, a UE8M0 scale per 32)");
  EXPECT_EQ(with([](ModelConfig& c) { c.quant = DeclaredQuant::modelopt_nvfp4; }),
            "m: the config says moe_quant_algo NVFP4, but layers.0.ffn.experts.0.w1 is MXFP4 (E2M1, a UE8M0 scale per "
            "32)");
  EXPECT_EQ(with([](ModelConfig& c) { c.dspark.reset(); }),
            "m: mtp.0.main_proj is of DSpark, but the config has no dspark fields");
  EXPECT_EQ(with([](ModelConfig& c) { c.num_nextn_predict_layers = 0; }),
            "m: the config says num_nextn_predict_layers 0, but the tensors have 2 draft stages (mtp.*)");
  CheckpointLayout fp8 = two_stages;
  fp8.experts = fp8.draft_experts = WeightFormat::fp8_block;
  EXPECT_EQ(with([](ModelConfig& c) { c.expert_dtype = ExpertDtype::fp4; }, fp8),
            "m: the config says expert_dtype fp4, but layers.0.ffn.experts.0.w1 is FP8 (E4M3, a UE8M0 scale per "
            "128x128)");
  CheckpointLayout nvfp4 = two_stages;
  nvfp4.experts = WeightFormat::nvfp4;
  nvfp4.packed = DType::u8;
  EXPECT_EQ(with([](ModelConfig&) {}, nvfp4),
            "m: layers.0.ffn.experts.0.w1 is NVFP4 (E2M1, an E4M3 scale per 16, an F32 scale), but the config's "
            "quantization_config does not say moe_quant_algo NVFP4");
}

TEST(Inventory, AConfigFarBeyondTheTensorsIsRefusedBeforeItCosts) {
  ModelConfig c = small();
  const TensorTable tensors = table(expected_tensors(c, two_stages));
  c.num_layers = 1024;
  c.num_experts = 4096;
  c.compress_ratios.assign(1024, 0);
  EXPECT_THROW(check_inventory(c, tensors, "m"), Error);
}

TEST(Inventory, AConvertedCheckpointIsRecognisedByItsNames) {
  TensorTable tensors;
  tensors.add({.name = "model.layers.0.self_attn.q_proj.weight"});
  try {
    check_inventory(small(), tensors, "m");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("converted checkpoint"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace fathom
