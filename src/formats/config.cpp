#include "formats/config.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "formats/json_reader.h"

namespace fathom {
namespace {

using Kind = JsonReader::Kind;

/// Fields that describe the file or its training and do not change what the model computes.
constexpr std::array harmless = {"_from_model_config",
                                 "_name_or_path",
                                 "attention_dropout",
                                 "auto_map",
                                 "aux_loss_alpha",
                                 "chunk_size_feed_forward",
                                 "dtype",
                                 "ep_size",
                                 "id2label",
                                 "initializer_range",
                                 "label2id",
                                 "output_attentions",
                                 "output_hidden_states",
                                 "pretraining_tp",
                                 "problem_type",
                                 "return_dict",
                                 "router_aux_loss_coef",
                                 "seq_aux",
                                 "torch_dtype",
                                 "transformers_version",
                                 "use_cache"};

/// Fields of quantization_config that only describe what the tensors show.
constexpr std::array harmless_quant = {"config_groups",
                                       "exclude_modules",
                                       "format",
                                       "ignore",
                                       "kv_cache_scheme",
                                       "modules_to_not_convert",
                                       "packed_modules_mapping",
                                       "producer",
                                       "quant_library",
                                       "quantized_layers",
                                       "quantization_status",
                                       "version"};

template <size_t N>
bool contains(const std::array<const char*, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What kind of model the file describes, read before anything else so that other models are refused by name.
struct Identity {
  std::string model_type, architecture;
  bool wrapped = false;         // has text_config or vision_config
  bool engram = false;          // has engram_* fields
  bool inference_form = false;  // the ModelArgs names of inference/config.json
};

Identity read_identity(std::string_view text, const std::string& name) {
  Identity id;
  JsonReader reader(text, name);
  reader.object([&](const std::string& key) {
    if (key == "model_type" && reader.kind() == Kind::string) {
      id.model_type = reader.string();
    } else if (key == "architectures" && reader.kind() == Kind::array) {
      reader.array([&] {
        std::string value = reader.string();
        if (id.architecture.empty()) id.architecture = std::move(value);
      });
    } else {
      id.wrapped |= key == "text_config" || key == "vision_config";
      id.engram |= key.starts_with("engram");
      id.inference_form |= key == "n_layers" || key == "moe_inter_dim";
      reader.skip();
    }
  });
  reader.finish();
  return id;
}

/// The name of a model that is not DeepSeek-V4, or nullptr.
const char* other_deepseek(const Identity& id) {
  struct Other {
    const char *model_type, *architecture, *name;
  };
  constexpr Other others[] = {{"deepseek_v41", "DeepseekV41ForCausalLM", "DeepSeek-V4.1"},
                              {"deepseek_v4_1", "DeepseekV4_1ForCausalLM", "DeepSeek-V4.1"},
                              {"deepseek_v32", "DeepseekV32ForCausalLM", "DeepSeek-V3.2"},
                              {"deepseek_v3_2", "DeepseekV3_2ForCausalLM", "DeepSeek-V3.2"},
                              {"kimi_k2", "KimiK2ForCausalLM", "Kimi K2"},
                              {"deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek-V3"},
                              {"deepseek_v2", "DeepseekV2ForCausalLM", "DeepSeek-V2"},
                              {"deepseek", "DeepseekForCausalLM", "DeepSeek (V1)"}};
  for (const Other& other : others)
    if (id.model_type == other.model_type) return other.name;
  for (const Other& other : others)
    if (id.architecture == other.architecture) return other.name;
  return nullptr;
}

void check_identity(const Identity& id, const std::string& name) {
  if (const char* other = other_deepseek(id))
    fail("{}: this is {}, a different architecture that fathom does not support (it runs DeepSeek-V4)", name, other);
  if (id.model_type.empty() && id.inference_form)
    fail("{}: this is the inference/config.json of a checkpoint; fathom reads the config.json beside the shards", name);
  if (id.model_type.empty() && id.architecture.empty())
    fail("{}: neither model_type nor architectures is there: not the config of a model", name);
  if (id.model_type != "deepseek_v4" || (!id.architecture.empty() && id.architecture != "DeepseekV4ForCausalLM"))
    fail(
        "{}: model_type \"{}\", architecture \"{}\": fathom runs DeepSeek-V4 only (deepseek_v4, DeepseekV4ForCausalLM)",
        name, printable(id.model_type, 60), printable(id.architecture, 60));
  if (id.engram)
    fail("{}: engram fields belong to DeepSeek-V4.1, a different architecture that fathom does not support", name);
  if (id.wrapped) fail("{}: text_config or vision_config: fathom runs the text models of DeepSeek-V4 only", name);
}

class ConfigParser {
 public:
  ConfigParser(std::string_view text, const std::string& name) : r_(text, name), name_(name) {}

  ModelConfig parse();

 private:
  using Reads = std::map<std::string_view, std::function<void()>>;

  /// Walks an object, calling the readers by key and noting what is unknown. Null counts as absent.
  template <size_t N>
  std::set<std::string> fields(const Reads& reads, const std::array<const char*, N>& ignored, std::string_view prefix);

  void integer(std::string_view key, int& out, int64_t low, int64_t high, int64_t multiple = 1);
  void integer(std::string_view key, int64_t& out, int64_t low, int64_t high);
  void real(std::string_view key, double& out, double low, double high);
  void fixed(std::string_view key, int64_t wanted);
  void fixed(std::string_view key, bool wanted);
  void fixed(std::string_view key, std::string_view wanted);
  std::vector<int> integers(std::string_view key, int64_t low, int64_t high, size_t limit);
  void require(const std::set<std::string>& seen, std::initializer_list<std::string_view> keys, std::string_view in);

  void read_dimensions(Reads& reads);
  void read_attention(Reads& reads);
  void read_experts(Reads& reads);
  void read_constants(Reads& reads);
  void read_draft(Reads& reads);
  void read_yarn();
  void read_quant();
  void read_ids(std::vector<int>& out);
  void read_expert_dtype(std::string_view key);
  void check(const std::set<std::string>& seen);

  JsonReader r_;
  const std::string& name_;
  ModelConfig c_;
  DsparkConfig dspark_;
  bool has_nvfp4_ = false;
};

template <size_t N>
std::set<std::string> ConfigParser::fields(const Reads& reads, const std::array<const char*, N>& ignored,
                                           std::string_view prefix) {
  std::set<std::string> seen;
  r_.object([&](const std::string& key) {
    if (r_.kind() == Kind::null) return r_.null();
    if (const auto found = reads.find(key); found != reads.end()) {
      seen.insert(key);
      return found->second();
    }
    if (!contains(ignored, key)) c_.unknown_fields.push_back(fmt::format("{}{}", prefix, printable(key)));
    r_.skip();
  });
  return seen;
}

void ConfigParser::integer(std::string_view key, int64_t& out, int64_t low, int64_t high) {
  const int64_t value = r_.integer();
  if (value < low || value > high) r_.fail(fmt::format("{} is {}, expected {} to {}", key, value, low, high));
  out = value;
}

void ConfigParser::integer(std::string_view key, int& out, int64_t low, int64_t high, int64_t multiple) {
  int64_t value = 0;
  integer(key, value, low, high);
  if (value % multiple != 0) r_.fail(fmt::format("{} is {}, expected a multiple of {}", key, value, multiple));
  out = static_cast<int>(value);
}

void ConfigParser::real(std::string_view key, double& out, double low, double high) {
  const double value = r_.number();
  if (!(value >= low && value <= high)) r_.fail(fmt::format("{} is {}, expected {} to {}", key, value, low, high));
  out = value;
}

void ConfigParser::fixed(std::string_view key, int64_t wanted) {
  const int64_t value = r_.integer();
  if (value != wanted) r_.fail(fmt::format("{} is {}; DeepSeek-V4 has {}", key, value, wanted));
}

void ConfigParser::fixed(std::string_view key, bool wanted) {
  const bool value = r_.boolean();
  if (value != wanted) r_.fail(fmt::format("{} is {}; DeepSeek-V4 has {}", key, value, wanted));
}

void ConfigParser::fixed(std::string_view key, std::string_view wanted) {
  const std::string value = r_.string();
  if (value != wanted) r_.fail(fmt::format("{} is \"{}\", fathom supports \"{}\"", key, printable(value, 40), wanted));
}

std::vector<int> ConfigParser::integers(std::string_view key, int64_t low, int64_t high, size_t limit) {
  std::vector<int> out;
  r_.array([&] {
    int value = 0;
    integer(key, value, low, high);
    if (out.size() == limit) r_.fail(fmt::format("{} has more than {} entries", key, limit));
    out.push_back(value);
  });
  return out;
}

void ConfigParser::require(const std::set<std::string>& seen, std::initializer_list<std::string_view> keys,
                           std::string_view in) {
  for (std::string_view key : keys)
    if (!seen.contains(std::string(key))) fail("{}: {}{} is missing", name_, in, key);
}

void ConfigParser::read_dimensions(Reads& reads) {
  reads["model_type"] = [this] { r_.skip(); };  // read_identity has checked both
  reads["architectures"] = [this] { r_.skip(); };
  reads["vocab_size"] = [this] { integer("vocab_size", c_.vocab_size, 1, 1 << 24); };
  reads["hidden_size"] = [this] { integer("hidden_size", c_.hidden_size, 128, 65536, 128); };
  reads["num_hidden_layers"] = [this] { integer("num_hidden_layers", c_.num_layers, 1, 1024); };
  reads["max_position_embeddings"] = [this] { integer("max_position_embeddings", c_.max_positions, 1, 1 << 24); };
  reads["hc_mult"] = [this] { fixed("hc_mult", int64_t{4}); };
  reads["hc_sinkhorn_iters"] = [this] { integer("hc_sinkhorn_iters", c_.hc_sinkhorn_iters, 1, 1000); };
  reads["hc_eps"] = [this] { real("hc_eps", c_.hc_eps, 1e-20, 1e-2); };
  reads["rms_norm_eps"] = [this] { real("rms_norm_eps", c_.rms_eps, 1e-20, 1e-2); };
  reads["tie_word_embeddings"] = [this] { fixed("tie_word_embeddings", false); };
  reads["bos_token_id"] = [this] { integer("bos_token_id", c_.bos_id, 0, 1 << 24); };
  reads["pad_token_id"] = [this] { integer("pad_token_id", c_.pad_id, 0, 1 << 24); };
  reads["eos_token_id"] = [this] { read_ids(c_.eos_ids); };
}

void ConfigParser::read_attention(Reads& reads) {
  reads["num_attention_heads"] = [this] { integer("num_attention_heads", c_.num_heads, 1, 4096); };
  reads["num_key_value_heads"] = [this] { fixed("num_key_value_heads", int64_t{1}); };
  reads["head_dim"] = [this] { fixed("head_dim", int64_t{512}); };
  reads["qk_rope_head_dim"] = [this] { fixed("qk_rope_head_dim", int64_t{64}); };
  reads["qk_nope_head_dim"] = [this] { fixed("qk_nope_head_dim", int64_t{448}); };
  reads["v_head_dim"] = [this] { fixed("v_head_dim", int64_t{512}); };
  reads["attention_bias"] = [this] { fixed("attention_bias", false); };
  reads["q_lora_rank"] = [this] { integer("q_lora_rank", c_.q_lora_rank, 128, 65536, 128); };
  reads["o_groups"] = [this] { integer("o_groups", c_.o_groups, 1, 1024); };
  reads["o_lora_rank"] = [this] { integer("o_lora_rank", c_.o_lora_rank, 128, 65536, 128); };
  reads["sliding_window"] = [this] { fixed("sliding_window", int64_t{128}); };
  reads["compress_ratios"] = [this] { c_.compress_ratios = integers("compress_ratios", 0, 1 << 20, 2048); };
  reads["index_n_heads"] = [this] { integer("index_n_heads", c_.index_heads, 1, 1024); };
  reads["index_head_dim"] = [this] {
    fixed("index_head_dim", int64_t{128});
    c_.index_head_dim = 128;
  };
  reads["index_topk"] = [this] { integer("index_topk", c_.index_topk, 1, 65536); };
}

void ConfigParser::read_experts(Reads& reads) {
  reads["n_routed_experts"] = [this] { integer("n_routed_experts", c_.num_experts, 1, 4096); };
  reads["num_experts_per_tok"] = [this] { integer("num_experts_per_tok", c_.experts_per_token, 1, 64); };
  reads["n_shared_experts"] = [this] { fixed("n_shared_experts", int64_t{1}); };
  reads["moe_intermediate_size"] = [this] {
    integer("moe_intermediate_size", c_.moe_intermediate_size, 128, 65536, 128);
  };
  reads["num_hash_layers"] = [this] { integer("num_hash_layers", c_.num_hash_layers, 0, 1024); };
  reads["scoring_func"] = [this] { fixed("scoring_func", std::string_view("sqrtsoftplus")); };
  reads["topk_method"] = [this] { fixed("topk_method", std::string_view("noaux_tc")); };
  reads["norm_topk_prob"] = [this] { fixed("norm_topk_prob", true); };
  reads["hidden_act"] = [this] { fixed("hidden_act", std::string_view("silu")); };
  reads["routed_scaling_factor"] = [this] { real("routed_scaling_factor", c_.route_scale, 1e-3, 1e3); };
  reads["swiglu_limit"] = [this] { real("swiglu_limit", c_.swiglu_limit, 1e-3, 1e6); };
  reads["expert_dtype"] = [this] { read_expert_dtype("expert_dtype"); };
  // Grouped routing and dense first layers are of V3; where such a field is left over it must say "none".
  reads["n_group"] = [this] { fixed("n_group", int64_t{1}); };
  reads["topk_group"] = [this] { fixed("topk_group", int64_t{1}); };
  reads["first_k_dense_replace"] = [this] { fixed("first_k_dense_replace", int64_t{0}); };
  reads["moe_layer_freq"] = [this] { fixed("moe_layer_freq", int64_t{1}); };
}

void ConfigParser::read_constants(Reads& reads) {
  reads["rope_theta"] = [this] { real("rope_theta", c_.rope_theta, 2, 1e12); };
  reads["compress_rope_theta"] = [this] { real("compress_rope_theta", c_.compress_rope_theta, 2, 1e12); };
  reads["rope_scaling"] = [this] { read_yarn(); };
  reads["quantization_config"] = [this] { read_quant(); };
}

void ConfigParser::read_draft(Reads& reads) {
  reads["num_nextn_predict_layers"] = [this] {
    integer("num_nextn_predict_layers", c_.num_nextn_predict_layers, 0, 16);
  };
  reads["dspark_block_size"] = [this] { integer("dspark_block_size", dspark_.block_size, 1, 64); };
  reads["dspark_markov_rank"] = [this] { integer("dspark_markov_rank", dspark_.markov_rank, 1, 65536); };
  reads["dspark_noise_token_id"] = [this] { integer("dspark_noise_token_id", dspark_.noise_token_id, 0, 1 << 24); };
  reads["dspark_target_layer_ids"] = [this] {
    dspark_.target_layers = integers("dspark_target_layer_ids", 0, 1023, 64);
    if (dspark_.target_layers.empty()) r_.fail("dspark_target_layer_ids is empty");
  };
}

void ConfigParser::read_ids(std::vector<int>& out) {
  if (r_.kind() == Kind::array) {
    out = integers("eos_token_id", 0, 1 << 24, 64);
    if (out.empty()) r_.fail("eos_token_id is empty");
  } else {
    integer("eos_token_id", out.emplace_back(), 0, 1 << 24);
  }
}

void ConfigParser::read_expert_dtype(std::string_view key) {
  const std::string value = r_.string();
  const ExpertDtype dtype = value == "fp4"   ? ExpertDtype::fp4
                            : value == "fp8" ? ExpertDtype::fp8
                                             : ExpertDtype::unstated;
  if (dtype == ExpertDtype::unstated)
    r_.fail(fmt::format("{} is \"{}\", fathom supports \"fp4\" and \"fp8\"", key, printable(value, 40)));
  if (c_.expert_dtype != ExpertDtype::unstated && c_.expert_dtype != dtype)
    r_.fail("expert_dtype differs between the config and its quantization_config");
  c_.expert_dtype = dtype;
}

void ConfigParser::read_yarn() {
  Reads reads;
  reads["type"] = [this] { fixed("rope_scaling.type", std::string_view("yarn")); };
  reads["rope_type"] = [this] { fixed("rope_scaling.rope_type", std::string_view("yarn")); };
  reads["factor"] = [this] { real("rope_scaling.factor", c_.yarn.factor, 1, 1e4); };
  reads["beta_fast"] = [this] { real("rope_scaling.beta_fast", c_.yarn.beta_fast, 1e-3, 1e6); };
  reads["beta_slow"] = [this] { real("rope_scaling.beta_slow", c_.yarn.beta_slow, 1e-3, 1e6); };
  reads["original_max_position_embeddings"] = [this] {
    integer("rope_scaling.original_max_position_embeddings", c_.yarn.original_length, 1, 1 << 24);
  };
  for (const char* key : {"mscale", "mscale_all_dim", "attention_factor", "truncate", "rope_theta"})
    reads[key] = [this, key] {
      r_.fail(fmt::format("rope_scaling.{}: the YaRN of DeepSeek-V4 has no such factor", key));
    };
  const std::set<std::string> seen = fields(reads, std::array<const char*, 0>{}, "rope_scaling.");
  if (!seen.contains("type") && !seen.contains("rope_type")) fail("{}: rope_scaling.type is missing", name_);
  require(seen, {"factor", "original_max_position_embeddings"}, "rope_scaling.");
  if (c_.yarn.beta_fast <= c_.yarn.beta_slow)
    fail("{}: rope_scaling.beta_fast {} is not above beta_slow {}", name_, c_.yarn.beta_fast, c_.yarn.beta_slow);
}

void ConfigParser::read_quant() {
  std::string method, algo;
  Reads reads;
  reads["quant_method"] = [&] { method = r_.string(); };
  reads["quant_algo"] = [&] { algo = r_.string(); };
  reads["fmt"] = [this] { fixed("quantization_config.fmt", std::string_view("e4m3")); };
  reads["scale_fmt"] = [this] { fixed("quantization_config.scale_fmt", std::string_view("ue8m0")); };
  reads["activation_scheme"] = [this] { fixed("quantization_config.activation_scheme", std::string_view("dynamic")); };
  reads["expert_dtype"] = [this] { read_expert_dtype("quantization_config.expert_dtype"); };
  reads["weight_block_size"] = [this] {
    const std::vector<int> block = integers("quantization_config.weight_block_size", 1, 65536, 2);
    if (block != std::vector{128, 128})
      r_.fail(fmt::format("quantization_config.weight_block_size is {}, fathom supports [128, 128]{}",
                          fmt::format("[{}]", fmt::join(block, ", ")),
                          block == std::vector{32, 32} ? " ([32, 32] belongs to DeepSeek-V4.1)" : ""));
  };
  reads["moe_quant_algo"] = [this] {
    fixed("quantization_config.moe_quant_algo", std::string_view("NVFP4"));
    has_nvfp4_ = true;
  };
  reads["group_size"] = [this] { fixed("quantization_config.group_size", int64_t{16}); };
  reads["kv_cache_quant_algo"] = [this] {
    r_.fail("quantization_config.kv_cache_quant_algo: fathom keeps the cache as DeepSeek-V4 defines it");
  };
  const std::set<std::string> seen = fields(reads, harmless_quant, "quantization_config.");
  if (method != "fp8" && !(has_nvfp4_ && method == "modelopt"))
    fail(
        "{}: quantization_config.quant_method \"{}\": fathom supports \"fp8\" (and \"modelopt\" with moe_quant_algo "
        "NVFP4)",
        name_, printable(method, 40));
  if (!algo.empty() && !(has_nvfp4_ && algo == "MIXED_PRECISION"))
    fail("{}: quantization_config.quant_algo \"{}\": fathom supports MIXED_PRECISION with moe_quant_algo NVFP4", name_,
         printable(algo, 40));
  if (!has_nvfp4_) require(seen, {"fmt", "scale_fmt", "weight_block_size"}, "quantization_config.");
  c_.quant = has_nvfp4_ ? DeclaredQuant::modelopt_nvfp4 : DeclaredQuant::fp8_blocks;
}

ModelConfig ConfigParser::parse() {
  c_.hc_eps = 1e-6;
  Reads reads;
  read_dimensions(reads);
  read_attention(reads);
  read_experts(reads);
  read_constants(reads);
  read_draft(reads);
  const std::set<std::string> seen = fields(reads, harmless, "");
  r_.finish();
  require(seen,
          {"vocab_size",
           "hidden_size",
           "num_hidden_layers",
           "max_position_embeddings",
           "hc_mult",
           "hc_sinkhorn_iters",
           "rms_norm_eps",
           "bos_token_id",
           "eos_token_id",
           "num_attention_heads",
           "head_dim",
           "qk_rope_head_dim",
           "q_lora_rank",
           "o_groups",
           "o_lora_rank",
           "sliding_window",
           "compress_ratios",
           "index_n_heads",
           "index_head_dim",
           "index_topk",
           "n_routed_experts",
           "num_experts_per_tok",
           "moe_intermediate_size",
           "scoring_func",
           "topk_method",
           "routed_scaling_factor",
           "swiglu_limit",
           "rope_theta",
           "compress_rope_theta",
           "rope_scaling",
           "quantization_config"},
          "");
  check(seen);
  return std::move(c_);
}

void ConfigParser::check(const std::set<std::string>& seen) {
  const auto id = [&](std::string_view key, int value) {
    if (value >= c_.vocab_size) fail("{}: {} {} is outside the vocabulary of {}", name_, key, value, c_.vocab_size);
  };
  id("bos_token_id", c_.bos_id);
  id("pad_token_id", c_.pad_id);
  for (int eos : c_.eos_ids) id("eos_token_id", eos);
  if (c_.num_heads % c_.o_groups != 0)
    fail("{}: num_attention_heads {} is not a multiple of o_groups {}", name_, c_.num_heads, c_.o_groups);
  if (c_.experts_per_token > c_.num_experts)
    fail("{}: num_experts_per_tok {} exceeds n_routed_experts {}", name_, c_.experts_per_token, c_.num_experts);
  if (c_.num_hash_layers > c_.num_layers)
    fail("{}: num_hash_layers {} exceeds num_hidden_layers {}", name_, c_.num_hash_layers, c_.num_layers);

  const size_t layers = static_cast<size_t>(c_.num_layers);
  if (c_.compress_ratios.size() < layers || c_.compress_ratios.size() > layers + 16)
    fail("{}: compress_ratios has {} entries for num_hidden_layers {} (one a layer, then one for each draft stage)",
         name_, c_.compress_ratios.size(), c_.num_layers);
  for (size_t i = 0; i < c_.compress_ratios.size(); ++i) {
    const int ratio = c_.compress_ratios[i];
    if (i >= layers && ratio != 0) fail("{}: compress_ratios[{}] is {}, but draft stages have 0", name_, i, ratio);
    if (ratio != 0 && ratio != 4 && ratio != 128)
      fail("{}: compress_ratios[{}] is {}, expected 0, 4 or 128{}", name_, i, ratio,
           ratio <= 2 ? " (1 and 2 belong to DeepSeek-V4.1)" : "");
  }

  constexpr std::array dspark = {"dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id",
                                 "dspark_target_layer_ids"};
  const auto present = std::count_if(dspark.begin(), dspark.end(), [&](const char* key) { return seen.contains(key); });
  if (present == 0) return;
  for (const char* key : dspark)
    if (!seen.contains(key)) fail("{}: {} is missing, but other dspark fields are there", name_, key);
  id("dspark_noise_token_id", dspark_.noise_token_id);
  int last = -1;
  for (int layer : dspark_.target_layers) {
    if (layer <= last || layer >= c_.num_layers)
      fail("{}: dspark_target_layer_ids must rise and stay below num_hidden_layers {}, found {}", name_, c_.num_layers,
           layer);
    last = layer;
  }
  c_.dspark = std::move(dspark_);
}

}  // namespace

ModelConfig parse_config(std::string_view text, const std::string& name) {
  check_identity(read_identity(text, name), name);
  return ConfigParser(text, name).parse();
}

ModelConfig read_config(const std::filesystem::path& file) {
  return parse_config(read_file(file, size_t{1} << 20), printable(file.string(), 400));
}

}  // namespace fathom
