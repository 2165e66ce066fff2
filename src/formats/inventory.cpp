#include "formats/inventory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace fathom {
namespace {

int64_t blocks(int64_t n) {
  return (n + 127) / 128;
}

/// Writes down the tensors of one checkpoint.
class Lister {
 public:
  Lister(const ModelConfig& config, const CheckpointLayout& layout) : c_(config), layout_(layout) {}

  std::vector<ExpectedTensor> list() {
    backbone();
    for (int stage = 0; stage < layout_.draft_stages; ++stage) draft(stage);
    return std::move(out_);
  }

 private:
  void add(std::string name, DType dtype, std::vector<int64_t> shape) {
    ExpectedTensor tensor;
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.bytes = static_cast<uint64_t>(size_of(dtype));
    for (int64_t n : tensor.shape) tensor.bytes *= static_cast<uint64_t>(n);
    out_.push_back(std::move(tensor));
  }

  void fp8(const std::string& prefix, int64_t rows, int64_t columns) {
    matrix(prefix, rows, columns, WeightFormat::fp8_block, DType::f8_e4m3);
  }

  void matrix(const std::string& prefix, int64_t rows, int64_t columns, WeightFormat format, DType storage) {
    switch (format) {
      case WeightFormat::fp8_block:
        add(prefix + ".weight", DType::f8_e4m3, {rows, columns});
        return add(prefix + ".scale", DType::f8_e8m0, {blocks(rows), blocks(columns)});
      case WeightFormat::mxfp4:
        add(prefix + ".weight", storage, {rows, columns / 2});
        return add(prefix + ".scale", DType::f8_e8m0, {rows, columns / 32});
      case WeightFormat::nvfp4:
        add(prefix + ".weight", storage, {rows, columns / 2});
        add(prefix + ".weight_scale", DType::f8_e4m3, {rows, columns / 16});
        add(prefix + ".weight_scale_2", DType::f32, {});
        return add(prefix + ".input_scale", DType::f32, {});
      case WeightFormat::bf16:
        return add(prefix + ".weight", DType::bf16, {rows, columns});
      case WeightFormat::f32:
        return add(prefix + ".weight", DType::f32, {rows, columns});
    }
  }

  void backbone() {
    const int64_t d = c_.hidden_size, vocab = c_.vocab_size;
    add("embed.weight", DType::bf16, {vocab, d});
    for (int layer = 0; layer < c_.num_layers; ++layer)
      block(fmt::format("layers.{}.", layer), c_.ratio(layer), c_.hash_routed(layer), layout_.experts, layout_.packed);
    add("norm.weight", DType::bf16, {d});
    add("head.weight", DType::bf16, {vocab, d});
    stream_head("");
  }

  /// The mix of the residual streams before the head.
  void stream_head(const std::string& p) {
    const int64_t n = c_.hc_streams;
    add(p + "hc_head_fn", DType::f32, {n, n * c_.hidden_size});
    add(p + "hc_head_base", DType::f32, {n});
    add(p + "hc_head_scale", DType::f32, {1});
  }

  void block(const std::string& p, int ratio, bool hash_routed, WeightFormat experts, DType packed) {
    const int64_t d = c_.hidden_size;
    attention(p + "attn.", ratio);
    feed_forward(p + "ffn.", hash_routed, experts, packed);
    add(p + "attn_norm.weight", DType::bf16, {d});
    add(p + "ffn_norm.weight", DType::bf16, {d});
    for (const char* half : {"hc_attn", "hc_ffn"}) {
      add(fmt::format("{}{}_fn", p, half), DType::f32, {c_.hc_mixes(), c_.hc_streams * d});
      add(fmt::format("{}{}_base", p, half), DType::f32, {c_.hc_mixes()});
      add(fmt::format("{}{}_scale", p, half), DType::f32, {3});
    }
  }

  void attention(const std::string& p, int ratio) {
    const int64_t d = c_.hidden_size, heads = c_.num_heads, dim = c_.head_dim, rank = c_.q_lora_rank;
    const int64_t grouped = int64_t{c_.o_groups} * c_.o_lora_rank;
    add(p + "attn_sink", DType::f32, {heads});
    fp8(p + "wq_a", rank, d);
    add(p + "q_norm.weight", DType::bf16, {rank});
    fp8(p + "wq_b", heads * dim, rank);
    fp8(p + "wkv", dim, d);
    add(p + "kv_norm.weight", DType::bf16, {dim});
    fp8(p + "wo_a", grouped, c_.heads_per_group() * dim);
    fp8(p + "wo_b", d, grouped);
    if (ratio > 0) compressor(p + "compressor.", ratio, dim);
    if (ratio != 4) return;
    fp8(p + "indexer.wq_b", int64_t{c_.index_heads} * c_.index_head_dim, rank);
    add(p + "indexer.weights_proj.weight", DType::bf16, {c_.index_heads, d});
    compressor(p + "indexer.compressor.", ratio, c_.index_head_dim);
  }

  /// Ratio 4 pools two overlapping halves, so its projections are twice as wide.
  void compressor(const std::string& p, int ratio, int64_t dim) {
    const int64_t width = ratio == 4 ? 2 * dim : dim;
    add(p + "ape", DType::f32, {ratio, width});
    add(p + "wkv.weight", DType::bf16, {width, c_.hidden_size});
    add(p + "wgate.weight", DType::bf16, {width, c_.hidden_size});
    add(p + "norm.weight", DType::bf16, {dim});
  }

  void feed_forward(const std::string& p, bool hash_routed, WeightFormat experts, DType packed) {
    const int64_t d = c_.hidden_size, inner = c_.moe_intermediate_size;
    add(p + "gate.weight", DType::bf16, {c_.num_experts, d});
    if (hash_routed)
      add(p + "gate.tid2eid", DType::i64, {c_.vocab_size, c_.experts_per_token});
    else
      add(p + "gate.bias", DType::f32, {c_.num_experts});
    for (int expert = 0; expert < c_.num_experts; ++expert) {
      const std::string e = fmt::format("{}experts.{}.", p, expert);
      matrix(e + "w1", inner, d, experts, packed);
      matrix(e + "w2", d, inner, experts, packed);
      matrix(e + "w3", inner, d, experts, packed);
    }
    fp8(p + "shared_experts.w1", inner, d);
    fp8(p + "shared_experts.w2", d, inner);
    fp8(p + "shared_experts.w3", inner, d);
  }

  void draft(int stage) {
    const int64_t d = c_.hidden_size;
    const std::string p = fmt::format("mtp.{}.", stage);
    block(p, 0, false, layout_.draft_experts, layout_.draft_packed);
    if (layout_.draft == DraftKind::mtp) {
      fp8(p + "e_proj", d, d);
      fp8(p + "h_proj", d, d);
      for (const char* name : {"enorm", "hnorm", "norm"}) add(fmt::format("{}{}.weight", p, name), DType::bf16, {d});
      return stream_head(p);
    }
    if (!c_.dspark) throw std::logic_error("a DSpark layout needs a config with dspark fields");
    const DsparkConfig& dspark = *c_.dspark;
    if (stage == 0) {
      fp8(p + "main_proj", d, static_cast<int64_t>(dspark.target_layers.size()) * d);
      add(p + "main_norm.weight", DType::bf16, {d});
    }
    if (stage == layout_.draft_stages - 1) {
      add(p + "norm.weight", DType::bf16, {d});
      add(p + "markov_head.markov_w1.weight", DType::bf16, {c_.vocab_size, dspark.markov_rank});
      add(p + "markov_head.markov_w2.weight", DType::bf16, {c_.vocab_size, dspark.markov_rank});
      add(p + "confidence_head.proj.weight", DType::bf16, {1, d + dspark.markov_rank});
      stream_head(p);
    }
  }

  const ModelConfig& c_;
  const CheckpointLayout& layout_;
  std::vector<ExpectedTensor> out_;
};

/// How many mtp.N there are; they must be 0, 1, 2, ...
int count_stages(const TensorTable& tensors) {
  constexpr int limit = 64;
  bool present[limit] = {};
  int stages = 0;
  for (const TensorInfo& tensor : tensors.all()) {
    if (!tensor.name.starts_with("mtp.")) continue;
    const char *begin = tensor.name.data() + 4, *end = tensor.name.data() + tensor.name.size();
    int stage = 0;
    const auto [stop, error] = std::from_chars(begin, end, stage);
    if (error != std::errc() || stop == end || *stop != '.' || stage < 0 || stage >= limit)
      fail("tensor {}: not the name of a draft stage (mtp.0 to mtp.{})", printable(tensor.name), limit - 1);
    present[stage] = true;
    stages = std::max(stages, stage + 1);
  }
  for (int i = 0; i < stages; ++i)
    if (!present[i]) fail("mtp.{} has tensors, but mtp.{} has none", stages - 1, i);
  return stages;
}

void recognise_draft(const ModelConfig& config, const TensorTable& tensors, CheckpointLayout& layout) {
  layout.draft_stages = count_stages(tensors);
  if (layout.draft_stages == 0) {
    if (config.dspark) fail("the config has dspark fields, but there are no draft tensors (mtp.*)");
    if (config.num_nextn_predict_layers > 0)
      fail("the config says num_nextn_predict_layers {}, but there are no draft tensors (mtp.*)",
           config.num_nextn_predict_layers);
    return;
  }
  const bool mtp = tensors.find("mtp.0.e_proj.weight") || tensors.find("mtp.0.h_proj.weight");
  const bool dspark = tensors.find("mtp.0.main_proj.weight") || tensors.find("mtp.0.main_norm.weight");
  if (mtp && dspark) fail("mtp.0 has both e_proj (the MTP block) and main_proj (DSpark): a mix of two drafts");
  if (!mtp && !dspark) fail("mtp.0 has neither e_proj (the MTP block) nor main_proj (DSpark): an unknown draft");
  layout.draft = mtp ? DraftKind::mtp : DraftKind::dspark;
  if (dspark && !config.dspark) fail("mtp.0.main_proj is of DSpark, but the config has no dspark fields");
  if (mtp && config.dspark) fail("the config has dspark fields, but mtp.0.e_proj is of the MTP block");
  // Checkpoints with DSpark may still say 1 here; a plain MTP checkpoint has no such excuse.
  if (config.num_nextn_predict_layers == 0 || (mtp && config.num_nextn_predict_layers != layout.draft_stages))
    fail("the config says num_nextn_predict_layers {}, but the tensors have {} draft stages (mtp.*)",
         config.num_nextn_predict_layers, layout.draft_stages);
}

/// Every routed expert under `block` must be stored like `first`, which is called `first_name`.
void check_same_format(const TensorTable& tensors, const ModelConfig& config, const std::string& block,
                       const WeightMatrix& first, const std::string& first_name) {
  std::string prefix;
  for (int expert = 0; expert < config.num_experts; ++expert) {
    for (const char* part : {"w1", "w2", "w3"}) {
      prefix = fmt::format("{}.ffn.experts.{}.{}", block, expert, part);
      if (!tensors.find(prefix + ".weight")) continue;  // the inventory lists it as missing
      const WeightMatrix found = recognise_matrix(tensors, prefix);
      if (found.format != first.format || found.storage != first.storage)
        fail("{} is {} in {}, but {} is {} in {}: a mix of two formats", prefix, name_of(found.format),
             name_of(found.storage), first_name, name_of(first.format), name_of(first.storage));
    }
  }
}

WeightMatrix recognise_experts(const ModelConfig& config, const TensorTable& tensors, const std::string& block) {
  const std::string name = block + ".ffn.experts.0.w1";
  const WeightMatrix found = recognise_matrix(tensors, name);
  const bool four_bits = found.format == WeightFormat::mxfp4 || found.format == WeightFormat::nvfp4;
  if (!four_bits && found.format != WeightFormat::fp8_block)
    fail("{} is {}: fathom supports routed experts in MXFP4, NVFP4 and FP8", name, name_of(found.format));
  if (config.expert_dtype == ExpertDtype::fp4 && !four_bits)
    fail("the config says expert_dtype fp4, but {} is {}", name, name_of(found.format));
  if (config.expert_dtype == ExpertDtype::fp8 && found.format != WeightFormat::fp8_block)
    fail("the config says expert_dtype fp8, but {} is {}", name, name_of(found.format));
  if (found.format == WeightFormat::nvfp4 && config.quant != DeclaredQuant::modelopt_nvfp4)
    fail("{} is {}, but the config's quantization_config does not say moe_quant_algo NVFP4", name,
         name_of(found.format));
  return found;
}

/// Throws Error when the tensors follow another naming, before thousands of them count as missing.
void check_naming(const TensorTable& tensors) {
  if (tensors.find("embed.weight") || tensors.find("layers.0.attn.wq_a.weight")) return;
  for (const TensorInfo& tensor : tensors.all())
    if (tensor.name.starts_with("model."))
      fail("tensor {}: a converted checkpoint; fathom reads the official names, which have no \"model.\" in front",
           printable(tensor.name));
}

/// Throws Error when the config implies far more tensors than there are, before their names are listed: a damaged
/// config must not cost gigabytes.
void check_scale(const ModelConfig& config, const TensorTable& tensors) {
  const uint64_t least = uint64_t{6} * static_cast<uint64_t>(config.num_layers) *
                         static_cast<uint64_t>(config.num_experts);  // w1, w2, w3: a weight and a scale each
  if (least > 100'000 && least > 4 * tensors.size())
    fail("{} tensors found, but num_hidden_layers {} and n_routed_experts {} imply more than {}", tensors.size(),
         config.num_layers, config.num_experts, least);
}

/// "3 missing (a, b, c)"; names at most three.
void report(std::vector<std::string>& parts, const std::vector<std::string>& names, std::string_view what) {
  if (names.empty()) return;
  const size_t shown = std::min<size_t>(names.size(), 3);
  parts.push_back(fmt::format("{} {} ({}{})", names.size(), what,
                              fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                              names.size() > shown ? ", ..." : ""));
}

bool same_shape(const ExpectedTensor& wanted, const TensorInfo& found) {
  if (wanted.shape == found.shape) return true;
  return wanted.shape.empty() && found.shape == std::vector<int64_t>{1};  // a scalar is [] or [1]
}

void compare(const std::vector<ExpectedTensor>& wanted, const TensorTable& tensors, const std::string& where) {
  std::vector<std::string> missing, unused, wrong;
  TensorTable known;
  for (const ExpectedTensor& tensor : wanted) {
    const TensorInfo* found = tensors.find(tensor.name);
    if (!found)
      missing.push_back(tensor.name);
    else if (found->dtype != tensor.dtype || !same_shape(tensor, *found))
      wrong.push_back(fmt::format("{} is {}, expected {}", tensor.name, describe(*found), describe(tensor)));
    known.add(tensor);
  }
  for (const TensorInfo& tensor : tensors.all())
    if (!known.find(tensor.name)) unused.push_back(printable(tensor.name));
  std::vector<std::string> parts;
  report(parts, missing, "missing");
  report(parts, unused, "used by no parameter");
  report(parts, wrong, "of the wrong type or shape");
  if (!parts.empty())
    fail("{}: {} tensors found, {} expected: {}", where, tensors.size(), wanted.size(), fmt::join(parts, "; "));
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, const CheckpointLayout& layout) {
  return Lister(config, layout).list();
}

uint64_t total_bytes(const std::vector<ExpectedTensor>& tensors) {
  uint64_t sum = 0;
  for (const ExpectedTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

CheckpointLayout recognise_layout(const ModelConfig& config, const TensorTable& tensors) {
  check_naming(tensors);
  CheckpointLayout layout;
  recognise_draft(config, tensors, layout);

  const std::string dense = "layers.0.attn.wq_a";
  if (const WeightMatrix found = recognise_matrix(tensors, dense); found.format != WeightFormat::fp8_block)
    fail("the config's quantization_config says fp8 in 128x128 blocks, but {} is {}", dense, name_of(found.format));

  const WeightMatrix experts = recognise_experts(config, tensors, "layers.0");
  if (config.quant == DeclaredQuant::modelopt_nvfp4 && experts.format != WeightFormat::nvfp4)
    fail("the config says moe_quant_algo NVFP4, but layers.0.ffn.experts.0.w1 is {}", name_of(experts.format));
  layout.experts = experts.format;
  layout.packed = experts.storage;
  for (int layer = 0; layer < config.num_layers; ++layer)
    check_same_format(tensors, config, fmt::format("layers.{}", layer), experts, "layers.0.ffn.experts.0.w1");

  if (layout.draft_stages > 0) {
    const WeightMatrix drafts = recognise_experts(config, tensors, "mtp.0");
    layout.draft_experts = drafts.format;
    layout.draft_packed = drafts.storage;
    for (int stage = 0; stage < layout.draft_stages; ++stage)
      check_same_format(tensors, config, fmt::format("mtp.{}", stage), drafts, "mtp.0.ffn.experts.0.w1");
  }
  return layout;
}

CheckpointLayout check_inventory(const ModelConfig& config, const TensorTable& tensors, const std::string& where) {
  try {
    check_scale(config, tensors);
    const CheckpointLayout layout = recognise_layout(config, tensors);
    compare(expected_tensors(config, layout), tensors, where);
    return layout;
  } catch (const Error& error) {
    const std::string text = error.what();
    throw Error(text.starts_with(where + ": ") ? text : fmt::format("{}: {}", where, text));
  }
}

void check_values(const ModelConfig& config, const TensorInfo& tensor, std::span<const std::byte> bytes) {
  const std::string_view name = tensor.name, last = name.substr(name.rfind('.') + 1);
  if (last == "tid2eid")
    check_ids(tensor, bytes, config.num_experts);
  else if (last == "scale" || last == "weight_scale" || last == "weight_scale_2" || last == "input_scale")
    check_scales(tensor, bytes);
  else
    check_finite(tensor, bytes);
}

}  // namespace fathom
