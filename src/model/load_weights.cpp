#include <fmt/format.h>

#include "base/error.h"
#include "formats/inventory.h"
#include "model/weights.h"

namespace fathom {
namespace {

/// Copies tensors of one checkpoint into weight memory and hands out typed views.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, WeightMemory& memory, const CheckpointLayout& layout, const LoadOptions& options)
      : checkpoint_(checkpoint), memory_(memory), config_(checkpoint.config()), layout_(layout), options_(options) {}

  Weights load() {
    Weights w;
    w.embed = matrix<bf16>("embed.weight");
    w.head = matrix<bf16>("head.weight");
    w.head_mix = head("");
    for (int i = 0; i < config_.num_layers; ++i)
      w.blocks.push_back(block(fmt::format("layers.{}", i), config_.ratio(i), config_.hash_routed(i), layout_.experts));
    if (options_.drafts && layout_.draft == DraftKind::dspark) w.dspark = dspark();
    return w;
  }

 private:
  std::byte* copy(const TensorInfo& tensor) {
    std::byte* to = memory_.allocate(tensor.bytes);
    copy_to(tensor, to);
    return to;
  }

  void copy_to(const TensorInfo& tensor, std::byte* to) {
    const auto bytes = checkpoint_.bytes(tensor);
    check_values(config_, tensor, bytes);
    memory_.upload(to, bytes);
    checkpoint_.release(tensor);
    done_ += tensor.bytes;
    if (options_.progress) options_.progress(done_, checkpoint_.total_bytes());
  }

  template <typename T>
  View<const T, 1> vector(const std::string& name) {
    const TensorInfo& t = checkpoint_.info(name);
    return View<const T, 1>(reinterpret_cast<const T*>(copy(t)), t.count());
  }

  template <typename T>
  View<const T, 2> matrix(const std::string& name) {
    const TensorInfo& t = checkpoint_.info(name);
    return View<const T, 2>(reinterpret_cast<const T*>(copy(t)), t.shape.at(0), t.shape.at(1));
  }

  ops::Fp8Weight fp8(const std::string& prefix) {
    return {matrix<e4m3>(prefix + ".weight"), matrix<e8m0>(prefix + ".scale")};
  }

  MixWeights mix(const std::string& prefix, const std::string& half) {
    const std::string hc = prefix + ".hc_" + half + "_";
    return {matrix<float>(hc + "fn"), vector<float>(hc + "scale"), vector<float>(hc + "base"),
            vector<bf16>(prefix + "." + half + "_norm.weight")};
  }

  HeadWeights head(const std::string& prefix) {
    return {matrix<float>(prefix + "hc_head_fn"), vector<float>(prefix + "hc_head_scale"),
            vector<float>(prefix + "hc_head_base"), vector<bf16>(prefix + "norm.weight")};
  }

  CompressorWeights compressor(const std::string& prefix) {
    return {matrix<float>(prefix + ".ape"), matrix<bf16>(prefix + ".wkv.weight"),
            matrix<bf16>(prefix + ".wgate.weight"), vector<bf16>(prefix + ".norm.weight")};
  }

  AttentionWeights attention(const std::string& prefix, int ratio) {
    AttentionWeights a;
    a.wq_a = fp8(prefix + ".wq_a");
    a.wkv = fp8(prefix + ".wkv");
    a.wq_b = fp8(prefix + ".wq_b");
    a.wo_a = fp8(prefix + ".wo_a");
    a.wo_b = fp8(prefix + ".wo_b");
    a.q_norm = vector<bf16>(prefix + ".q_norm.weight");
    a.kv_norm = vector<bf16>(prefix + ".kv_norm.weight");
    a.sink = vector<float>(prefix + ".attn_sink");
    if (ratio > 0) a.compressor = compressor(prefix + ".compressor");
    if (ratio == 4) {
      a.indexer = IndexerWeights{fp8(prefix + ".indexer.wq_b"), matrix<bf16>(prefix + ".indexer.weights_proj.weight"),
                                 compressor(prefix + ".indexer.compressor")};
    }
    return a;
  }

  /// tid2eid is stored as I64; ops take int32.
  View<const int32_t, 2> expert_table(const std::string& name) {
    const TensorInfo& t = checkpoint_.info(name);
    check_values(config_, t, checkpoint_.bytes(t));
    const auto wide = checkpoint_.copy<int64_t>(name);
    const std::vector<int32_t> ids(wide.begin(), wide.end());
    std::byte* to = memory_.allocate(ids.size() * sizeof(int32_t));
    memory_.upload(to, std::as_bytes(std::span(ids)));
    checkpoint_.release(t);
    done_ += t.bytes;
    return View<const int32_t, 2>(reinterpret_cast<const int32_t*>(to), t.shape.at(0), t.shape.at(1));
  }

  /// Stacks the same matrix of every expert.
  ops::ExpertWeight experts(const std::string& prefix, const char* which, WeightFormat format, int64_t rows,
                            int64_t columns) {
    const auto name = [&](int e, const char* part) {
      return fmt::format("{}.experts.{}.{}.{}", prefix, e, which, part);
    };
    ops::ExpertWeight w;
    w.format = format == WeightFormat::fp8_block ? ops::ExpertFormat::fp8
               : format == WeightFormat::nvfp4   ? ops::ExpertFormat::nvfp4
                                                 : ops::ExpertFormat::mxfp4;
    w.rows = rows;
    w.columns = columns;
    const char* scale_part = w.format == ops::ExpertFormat::nvfp4 ? "weight_scale" : "scale";
    w.codes_stride = rows * w.code_row_bytes();
    w.scale_stride = (w.format == ops::ExpertFormat::fp8 ? (rows + 127) / 128 : rows) * w.scale_columns();
    std::byte* codes = memory_.allocate(static_cast<size_t>(w.codes_stride * config_.num_experts));
    std::byte* scale = memory_.allocate(static_cast<size_t>(w.scale_stride * config_.num_experts));
    std::vector<float> global;
    for (int e = 0; e < config_.num_experts; ++e) {
      copy_to(checkpoint_.info(name(e, "weight")), codes + e * w.codes_stride);
      copy_to(checkpoint_.info(name(e, scale_part)), scale + e * w.scale_stride);
      if (w.format != ops::ExpertFormat::nvfp4) continue;
      const TensorInfo& factor = checkpoint_.info(name(e, "weight_scale_2"));
      check_values(config_, factor, checkpoint_.bytes(factor));
      global.push_back(checkpoint_.copy<float>(factor.name).at(0));
    }
    if (!global.empty()) {
      std::byte* at = memory_.allocate(global.size() * sizeof(float));
      memory_.upload(at, std::as_bytes(std::span(global)));
      w.global_scale = reinterpret_cast<const float*>(at);
    }
    w.codes = codes;
    w.scale = scale;
    return w;
  }

  MoeWeights moe(const std::string& prefix, bool hash, WeightFormat format) {
    const int64_t d = config_.hidden_size, inner = config_.moe_intermediate_size;
    MoeWeights m;
    m.gate = matrix<bf16>(prefix + ".gate.weight");
    if (hash)
      m.table = expert_table(prefix + ".gate.tid2eid");
    else
      m.bias = vector<float>(prefix + ".gate.bias");
    m.w1 = experts(prefix, "w1", format, inner, d);
    m.w3 = experts(prefix, "w3", format, inner, d);
    m.w2 = experts(prefix, "w2", format, d, inner);
    m.shared_w1 = fp8(prefix + ".shared_experts.w1");
    m.shared_w3 = fp8(prefix + ".shared_experts.w3");
    m.shared_w2 = fp8(prefix + ".shared_experts.w2");
    return m;
  }

  BlockWeights block(const std::string& prefix, int ratio, bool hash, WeightFormat format) {
    return {ratio, mix(prefix, "attn"), mix(prefix, "ffn"), attention(prefix + ".attn", ratio),
            moe(prefix + ".ffn", hash, format)};
  }

  DsparkWeights dspark() {
    DsparkWeights d;
    for (int i = 0; i < layout_.draft_stages; ++i)
      d.stages.push_back(block(fmt::format("mtp.{}", i), 0, false, layout_.draft_experts));
    const std::string last = fmt::format("mtp.{}.", layout_.draft_stages - 1);
    d.main_proj = fp8("mtp.0.main_proj");
    d.main_norm = vector<bf16>("mtp.0.main_norm.weight");
    d.head = head(last);
    d.markov_w1 = matrix<bf16>(last + "markov_head.markov_w1.weight");
    d.markov_w2 = matrix<bf16>(last + "markov_head.markov_w2.weight");
    d.confidence = vector<bf16>(last + "confidence_head.proj.weight");
    return d;
  }

  const Checkpoint& checkpoint_;
  WeightMemory& memory_;
  const ModelConfig& config_;
  const CheckpointLayout& layout_;
  const LoadOptions& options_;
  uint64_t done_ = 0;
};

}  // namespace

Weights load_weights(const Checkpoint& checkpoint, std::shared_ptr<WeightMemory> memory, const LoadOptions& options) {
  const CheckpointLayout layout =
      check_inventory(checkpoint.config(), checkpoint.tensors(), checkpoint.folder().string());
  Weights w = Loader(checkpoint, *memory, layout, options).load();
  w.memory = std::move(memory);
  w.layout = layout;
  return w;
}

}  // namespace fathom
