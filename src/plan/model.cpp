#include "plan/model.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "formats/built_in.h"
#include "formats/checkpoint.h"

namespace fathom::plan {
namespace {

constexpr double row_bytes = 584;  // of a KV row: 448 e4m3, 64 bf16, 8 of scales

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_routed(std::string_view name) {
  return contains(name, ".ffn.experts.");
}

bool is_scale(const ExpectedTensor& t) {
  return t.name.ends_with(".scale") || t.name.ends_with(".weight_scale") || t.name.ends_with(".weight_scale_2") ||
         t.name.ends_with(".input_scale");
}

/// Divided over the devices by the official converter; everything else but the routed experts is on all of them.
bool is_split(std::string_view name) {
  for (const char* part : {"attn.wq_b.", "attn.wo_a.", "attn.wo_b.", "attn.attn_sink", "indexer.wq_b.",
                           "indexer.weights_proj.", "head.weight"})
    if (contains(name, part)) return !contains(name, "markov_head");
  return false;
}

bool is_lookup(std::string_view name) {
  return name == "embed.weight" || name.ends_with("tid2eid") || contains(name, "markov_w1");
}

double parameters_of(const ExpectedTensor& t) {
  // As published counts do: scales, tables and the selection bias, which no gradient reaches, are none.
  if (is_scale(t) || t.name.ends_with("tid2eid") || t.name.ends_with("gate.bias")) return 0;
  const bool packed = t.dtype == DType::i8 || t.dtype == DType::u8;  // two E2M1 a byte
  return static_cast<double>(t.count()) * (packed ? 2 : 1);
}

void count_draft(const ExpectedTensor& t, double experts, DraftBytes& draft) {
  const auto bytes = static_cast<double>(t.bytes);
  draft.resident += bytes;
  if (is_routed(t.name))
    draft.per_expert += bytes / experts / draft.stages;
  else if (contains(t.name, "markov_w2"))
    draft.each += bytes;
  else if (!is_lookup(t.name))
    draft.once += bytes;
}

/// What a config alone says of the tensors.
CheckpointLayout stated_layout(const ModelConfig& c) {
  CheckpointLayout layout;
  if (c.expert_dtype == ExpertDtype::fp8) layout.experts = layout.draft_experts = WeightFormat::fp8_block;
  if (c.quant == DeclaredQuant::modelopt_nvfp4) layout.experts = WeightFormat::nvfp4;
  if (c.dspark) {
    // The config of 0731 says one stage where there are three: the ratios list one 0 for each.
    layout.draft = DraftKind::dspark;
    layout.draft_stages = std::max(1, static_cast<int>(c.compress_ratios.size()) - c.num_layers);
  } else if (c.num_nextn_predict_layers > 0) {
    layout.draft = DraftKind::mtp;
    layout.draft_stages = c.num_nextn_predict_layers;
  }
  return layout;
}

}  // namespace

Model model_of(std::string name, const ModelConfig& config, const CheckpointLayout& layout) {
  Model m;
  m.name = std::move(name);
  m.config = config;
  m.draft.stages = layout.draft_stages;
  m.draft.block = config.dspark ? config.dspark->block_size : layout.draft_stages;
  for (int layer = 0; layer < config.num_layers; ++layer)
    ++(config.ratio(layer) == 0 ? m.window_layers : config.ratio(layer) == 4 ? m.csa_layers : m.hca_layers);

  double routed_parameters = 0, looked_up = 0;
  for (const ExpectedTensor& t : expected_tensors(config, layout)) {
    if (t.name.starts_with("mtp.")) {
      count_draft(t, config.num_experts, m.draft);
      continue;
    }
    const auto bytes = static_cast<double>(t.bytes);
    m.parameters += parameters_of(t);
    if (is_routed(t.name)) {
      m.weights.routed += bytes, routed_parameters += parameters_of(t);
    } else if (is_lookup(t.name)) {
      m.weights.lookup += bytes, looked_up += parameters_of(t);
    } else {
      (is_split(t.name) ? m.weights.split : m.weights.replicated) += bytes;
      if (t.name == "head.weight" && layout.draft_stages > 0) m.draft.once += bytes;
    }
  }
  m.weights.per_expert = m.weights.routed / config.num_layers / config.num_experts;
  const double met = static_cast<double>(config.experts_per_token) / config.num_experts;
  m.active_parameters = m.parameters - looked_up - routed_parameters * (1 - met);
  return m;
}

Model find_model(const std::string& name_or_path, int experts) {
  ModelConfig config;
  CheckpointLayout layout;
  if (const auto known = built_in_model(name_or_path)) {
    config = known->config, layout = known->layout;
  } else {
    const std::filesystem::path path(name_or_path);
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(path, ignored);
    if (!folder && !std::filesystem::exists(path, ignored))
      fail("{}: neither a built-in model ({}) nor a checkpoint folder or config.json", printable(name_or_path, 400),
           built_in_models());
    config = read_config(folder ? path / "config.json" : path);
    layout = stated_layout(config);
    if (folder && std::filesystem::exists(path / "model.safetensors.index.json", ignored)) {
      const Checkpoint checkpoint(path);
      layout = check_inventory(config, checkpoint.tensors(), printable(name_or_path, 400));
    }
  }
  if (experts > 0) {
    if (experts < config.experts_per_token)
      fail("--experts {}: fewer than the {} that each token meets", experts, config.experts_per_token);
    config.num_experts = experts;
  }
  return model_of(name_or_path, config, layout);
}

double cache_read_bytes(const Model& m, double context, double index_row) {
  const double window = std::min<double>(m.config.window, context);
  const double chosen = std::min<double>(m.config.index_topk, context / 4);
  return m.csa_layers * ((window + chosen) * row_bytes + context / 4 * index_row) +
         m.hca_layers * (window + context / 128) * row_bytes + m.window_layers * window * row_bytes;
}

double cache_bytes_per_token(const Model& m, double index_row) {
  return m.csa_layers * (row_bytes + index_row) / 4 + m.hca_layers * row_bytes / 128;
}

double cache_bytes_fixed(const Model& m) {
  const double head = m.config.head_dim, index = m.config.index_head_dim;
  // Two rings (values and scores) in fp32: ratio 4 keeps 8 positions of twice the width, ratio 128 keeps 128.
  const double csa = 2 * 8 * (2 * head + 2 * index) * 4, hca = 2 * 128 * head * 4;
  return m.layers() * static_cast<double>(m.config.window) * row_bytes + m.csa_layers * csa + m.hca_layers * hca;
}

TokenOperations operations(const Model& m, double context) {
  const double window = std::min<double>(m.config.window, context);
  const double rows = m.csa_layers * (window + std::min<double>(m.config.index_topk, context / 4)) +
                      m.hca_layers * (window + context / 128) + m.window_layers * window;
  TokenOperations o;
  o.products = 2 * m.active_parameters;
  o.attention = rows * m.config.num_heads * m.config.head_dim * 4;
  o.index = m.csa_layers * context / 4 * m.config.index_heads * m.config.index_head_dim * 2;
  return o;
}

}  // namespace fathom::plan
