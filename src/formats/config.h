// The model's dimensions and constants, read from a Hugging Face config.json and checked.
//
// Covers the DeepSeek-V4 family (Flash, Flash-Base, Flash-DSpark, Pro, NVFP4 repacks). Other architectures are refused
// by name. Spec: deepseek-v4.md section 1 (fields), 9 and 10 (what differs).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

/// How the config says the routed experts are stored. The tensors decide; a contradiction is an error.
enum class ExpertDtype { unstated, fp4, fp8 };

/// Which quantisation the config declares: the official block FP8, or NVIDIA's repack with NVFP4 experts.
enum class DeclaredQuant { fp8_blocks, modelopt_nvfp4 };

/// YaRN frequency interpolation; used only by layers with a compress ratio, without mscale.
struct YarnConfig {
  double factor = 16;
  int64_t original_length = 65536;  // tokens
  double beta_fast = 32, beta_slow = 1;
};

/// The DSpark draft module. Present when the config has the dspark_* fields; the tensors tell how many stages.
struct DsparkConfig {
  int block_size = 5;              // tokens proposed a step
  int markov_rank = 256;           // width of the Markov embedding
  int noise_token_id = 0;          // fills the block's unknown places
  std::vector<int> target_layers;  // backbone layers whose outputs are projected, ascending
};

/// Every dimension and constant of the forward pass. Comments give the config.json name where it differs.
struct ModelConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;  // num_hidden_layers: the backbone
  int num_heads = 0;   // num_attention_heads: query heads; there is one key-value head
  int head_dim = 512;
  int rope_dim = 64;  // qk_rope_head_dim: the last channels of a head
  int q_lora_rank = 0;
  int o_groups = 0;
  int o_lora_rank = 0;  // per group

  int num_experts = 0;            // n_routed_experts
  int experts_per_token = 0;      // num_experts_per_tok
  int num_shared_experts = 1;     // n_shared_experts
  int moe_intermediate_size = 0;  // routed and shared
  int num_hash_layers = 0;        // the first layers route by token id
  double route_scale = 0;         // routed_scaling_factor
  double swiglu_limit = 0;

  int window = 128;                  // sliding_window, tokens
  std::vector<int> compress_ratios;  // one for each backbone layer, then one 0 for each draft stage the file lists
  double rope_theta = 0;             // layers of ratio 0 and drafts
  double compress_rope_theta = 0;    // layers of ratio 4 and 128
  YarnConfig yarn;                   // rope_scaling
  int64_t max_positions = 0;         // max_position_embeddings

  int index_heads = 0;  // index_n_heads
  int index_head_dim = 0;
  int index_topk = 0;

  int hc_streams = 4;  // hc_mult
  int hc_sinkhorn_iters = 0;
  double hc_eps = 0, rms_eps = 0;  // rms_norm_eps

  int bos_id = 0;
  std::vector<int> eos_ids;  // eos_token_id: one id or a list; never empty
  int pad_id = -1;           // -1: none stated

  int num_nextn_predict_layers = 0;    // as declared; 0731 says 1 and stores 3 stages, so count the tensors instead
  std::optional<DsparkConfig> dspark;  // absent: no draft, or the MTP block of the preview
  ExpertDtype expert_dtype = ExpertDtype::unstated;
  DeclaredQuant quant = DeclaredQuant::fp8_blocks;

  /// Fields of the file that fathom neither uses nor knows as harmless. The caller shows them; they are no error.
  std::vector<std::string> unknown_fields;

  int nope_dim() const { return head_dim - rope_dim; }
  int ratio(int layer) const { return compress_ratios[static_cast<size_t>(layer)]; }
  bool hash_routed(int layer) const { return layer < num_hash_layers; }
  int heads_per_group() const { return num_heads / o_groups; }
  /// Rows of the mixing matrices hc_attn_fn and hc_ffn_fn: pre, post and the combination.
  int hc_mixes() const { return 2 * hc_streams + hc_streams * hc_streams; }
};

/// Reads and checks `text`, the content of the file that `name` names in errors. Throws Error naming the field, its
/// value and what was expected. Defaults, used when a field is absent: num_key_value_heads 1, n_shared_experts 1,
/// num_hash_layers 0, hc_eps 1e-6, norm_topk_prob true, tie_word_embeddings false, attention_bias false, hidden_act
/// silu, num_nextn_predict_layers 0, expert_dtype unstated. Every other field of section 1 is required.
ModelConfig parse_config(std::string_view text, const std::string& name);

/// parse_config on a file of at most 1 MiB.
ModelConfig read_config(const std::filesystem::path& file);

}  // namespace fathom
