#include "formats/built_in.h"

namespace fathom {
namespace {

ModelConfig flash_config() {
  ModelConfig c;
  c.vocab_size = 129280, c.hidden_size = 4096, c.num_layers = 43, c.num_heads = 64;
  c.q_lora_rank = 1024, c.o_groups = 8, c.o_lora_rank = 1024;
  c.num_experts = 256, c.experts_per_token = 6, c.moe_intermediate_size = 2048, c.num_hash_layers = 3;
  c.route_scale = 1.5, c.swiglu_limit = 10;
  c.rope_theta = 10000, c.compress_rope_theta = 160000;
  c.index_heads = 64, c.index_head_dim = 128, c.index_topk = 512;
  c.hc_sinkhorn_iters = 20, c.hc_eps = 1e-6, c.rms_eps = 1e-6;
  c.eos_ids = {1};
  c.max_positions = 1 << 20, c.num_nextn_predict_layers = 1;
  c.expert_dtype = ExpertDtype::fp4;
  c.compress_ratios = {0, 0};
  for (int layer = 2; layer < c.num_layers; ++layer) c.compress_ratios.push_back(layer % 2 == 0 ? 4 : 128);
  return c;
}

ModelConfig pro_config() {
  ModelConfig c = flash_config();
  c.hidden_size = 7168, c.num_layers = 61, c.num_heads = 128, c.q_lora_rank = 1536, c.o_groups = 16;
  c.num_experts = 384, c.moe_intermediate_size = 3072, c.index_topk = 1024;
  c.route_scale = 2.5;
  c.compress_ratios = {128, 128};
  for (int layer = 2; layer < c.num_layers; ++layer) c.compress_ratios.push_back(layer % 2 == 0 ? 4 : 128);
  return c;
}

ModelConfig fairy_config() {
  ModelConfig c = flash_config();
  c.vocab_size = 2048, c.hidden_size = 256, c.num_layers = 6, c.num_heads = 4;
  c.q_lora_rank = 128, c.o_groups = 2, c.o_lora_rank = 128;
  c.num_experts = 16, c.experts_per_token = 4, c.moe_intermediate_size = 128, c.num_hash_layers = 1;
  c.index_heads = 4, c.index_topk = 64, c.max_positions = 16384;
  c.compress_ratios = {0, 4, 128, 4, 128, 4};
  c.dspark = DsparkConfig{5, 64, 2022, {3, 4, 5}};
  return c;
}

constexpr CheckpointLayout kMtp = {.draft = DraftKind::mtp, .draft_stages = 1};

}  // namespace

std::optional<BuiltInModel> built_in_model(std::string_view name) {
  if (name == "v4-flash") return BuiltInModel{flash_config(), kMtp};
  if (name == "v4-pro") return BuiltInModel{pro_config(), kMtp};
  if (name == "fairy") return BuiltInModel{fairy_config(), {.draft = DraftKind::dspark, .draft_stages = 2}};
  if (name != "v4-flash-0731" && name != "v4-flash-0731-k160") return std::nullopt;
  BuiltInModel m{flash_config(), {.draft = DraftKind::dspark, .draft_stages = 3}};
  m.config.dspark = DsparkConfig{5, 256, 128799, {40, 41, 42}};
  if (name.ends_with("k160")) m.config.num_experts = 160;
  return m;
}

std::string built_in_models() {
  return "v4-flash, v4-flash-0731, v4-flash-0731-k160, v4-pro, fairy";
}

}  // namespace fathom
