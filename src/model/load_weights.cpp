#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "formats/inventory.h"
#include "model/weights.h"
#include "ops/order/order.h"

namespace fathom {
namespace {

/// A checkpoint as a source. Its values are checked as they are read.
class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(const Checkpoint* checkpoint)
      : checkpoint_(checkpoint),
        layout_(check_inventory(checkpoint->config(), checkpoint->tensors(), checkpoint->folder().string())) {}
  explicit CheckpointSource(Checkpoint checkpoint)
      : own_(std::make_unique<Checkpoint>(std::move(checkpoint))),
        checkpoint_(own_.get()),
        layout_(check_inventory(own_->config(), own_->tensors(), own_->folder().string())) {}

  const ModelConfig& config() const override { return checkpoint_->config(); }
  const CheckpointLayout& layout() const override { return layout_; }
  std::string name() const override {
    const auto folder = std::filesystem::absolute(checkpoint_->folder()).lexically_normal();
    return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  }
  bool synthetic() const override { return false; }
  uint64_t total_bytes() const override { return checkpoint_->total_bytes(); }
  size_t tensor_count() const override { return checkpoint_->tensors().size(); }
  const TensorInfo& info(const std::string& name) const override { return checkpoint_->info(name); }

  void put(const TensorInfo& tensor, std::byte* to, WeightMemory& memory) const override {
    const auto bytes = checkpoint_->bytes(tensor);
    check_values(config(), tensor, bytes);
    memory.upload(to, bytes);
    checkpoint_->release(tensor);
  }
  void put_part(const TensorInfo& tensor, const TensorPart& part, std::byte* to, WeightMemory& memory) const override {
    const auto bytes = checkpoint_->bytes(tensor);
    const size_t pitch = bytes.size() / static_cast<size_t>(tensor.shape.at(0)),
                 width = static_cast<size_t>(part.bytes);
    const auto rows =
        bytes.subspan(static_cast<size_t>(part.first_row) * pitch, static_cast<size_t>(part.rows) * pitch);
    // What the other ranks take they check, and need not be read here.
    try {
      check_values(config(), tensor, rows);
    } catch (const Error&) {
      check_values(config(), tensor, bytes);  // names the element by its place in the tensor
      throw;
    }
    if (width == pitch) {
      memory.upload(to, rows);
    } else {
      std::vector<std::byte> dense;
      dense.reserve(static_cast<size_t>(part.rows) * width);
      for (size_t at = static_cast<size_t>(part.first_byte); at < rows.size(); at += pitch) {
        const auto piece = rows.subspan(at, width);
        dense.insert(dense.end(), piece.begin(), piece.end());
      }
      memory.upload(to, dense);
    }
    checkpoint_->release(tensor);
  }
  void put_ids(const TensorInfo& tensor, std::byte* to, WeightMemory& memory) const override {
    check_values(config(), tensor, checkpoint_->bytes(tensor));
    const auto wide = checkpoint_->copy<int64_t>(tensor.name);
    const std::vector<int32_t> ids(wide.begin(), wide.end());
    memory.upload(to, std::as_bytes(std::span(ids)));
    checkpoint_->release(tensor);
  }
  float factor(const TensorInfo& tensor) const override {
    check_values(config(), tensor, checkpoint_->bytes(tensor));
    return checkpoint_->copy<float>(tensor.name).at(0);
  }
  void release() const override { checkpoint_->release_all(); }

 private:
  std::unique_ptr<Checkpoint> own_;
  const Checkpoint* checkpoint_;
  CheckpointLayout layout_;
};

/// Puts the tensors of a source into weight memory and hands out typed views. `shapes_only`: puts nothing.
class Loader {
 public:
  Loader(const WeightSource& source, WeightMemory& memory, const LoadOptions& options, bool shapes_only)
      : source_(source),
        memory_(memory),
        config_(source.config()),
        layout_(source.layout()),
        options_(options),
        shard_(options.shard),
        shapes_only_(shapes_only) {
    check_shards(config_, shard_.size);
    if (options.drafts && shard_.size > 1 && layout_.draft == DraftKind::mtp)
      fail("speculation on several ranks: the MTP block needs the whole model on one device; leave --speculate off");
  }

  Weights load() {
    Weights w;
    w.embed = matrix<bf16>("embed.weight");
    w.head = matrix_rows<bf16>("head.weight");
    w.head_mix = head("");
    for (int i = 0; i < config_.num_layers; ++i)
      w.blocks.push_back(block(fmt::format("layers.{}", i), config_.ratio(i), config_.hash_routed(i), layout_.experts));
    if (options_.drafts && layout_.draft == DraftKind::dspark) w.dspark = dspark();
    if (options_.drafts && layout_.draft == DraftKind::mtp) w.mtp = mtp();
    return w;
  }

 private:
  std::byte* copy(const TensorInfo& tensor) {
    std::byte* to = memory_.allocate(tensor.bytes);
    copy_to(tensor, to);
    return to;
  }

  void copy_to(const TensorInfo& tensor, std::byte* to) {
    if (!shapes_only_) source_.put(tensor, to, memory_);
    count(tensor.bytes);
  }

  void copy_part(const TensorInfo& tensor, const TensorPart& part, std::byte* to) {
    const auto bytes = static_cast<uint64_t>(part.rows * part.bytes);
    if (bytes == tensor.bytes) return copy_to(tensor, to);
    if (!shapes_only_) source_.put_part(tensor, part, to, memory_);
    count(bytes);
  }

  void count(uint64_t bytes) {
    done_ += bytes;
    if (options_.progress && !shapes_only_) options_.progress(done_, source_.total_bytes());
  }

  template <typename T>
  View<const T, 1> vector(const std::string& name) {
    const TensorInfo& t = source_.info(name);
    return View<const T, 1>(reinterpret_cast<const T*>(copy(t)), t.count());
  }

  template <typename T>
  View<const T, 2> matrix(const std::string& name) {
    const TensorInfo& t = source_.info(name);
    return View<const T, 2>(reinterpret_cast<const T*>(copy(t)), t.shape.at(0), t.shape.at(1));
  }

  ops::Fp8Weight fp8(const std::string& prefix) {
    return {matrix<e4m3>(prefix + ".weight"), matrix<e8m0>(prefix + ".scale")};
  }

  /// Puts a part of a tensor: `rows` of its rows from `first_row` on, columns likewise.
  template <typename T>
  View<const T, 2> part(const std::string& name, int64_t first_row, int64_t rows, int64_t first_column,
                        int64_t columns) {
    const TensorInfo& t = source_.info(name);
    const auto each = static_cast<int64_t>(sizeof(T));
    const TensorPart piece{first_row, rows, first_column * each, columns * each};
    std::byte* to = memory_.allocate(static_cast<size_t>(rows * piece.bytes));
    copy_part(t, piece, to);
    return View<const T, 2>(reinterpret_cast<const T*>(to), rows, columns);
  }

  /// This rank's rows of a matrix; all of them of a whole model.
  template <typename T>
  View<const T, 2> matrix_rows(const std::string& name) {
    if (shard_.size == 1) return matrix<T>(name);
    const auto& shape = source_.info(name).shape;
    const int64_t rows = shape.at(0) / shard_.size;
    return part<T>(name, shard_.rank * rows, rows, 0, shape.at(1));
  }
  template <typename T>
  View<const T, 2> matrix_columns(const std::string& name) {
    if (shard_.size == 1) return matrix<T>(name);
    const auto& shape = source_.info(name).shape;
    const int64_t columns = shape.at(1) / shard_.size;
    return part<T>(name, 0, shape.at(0), shard_.rank * columns, columns);
  }
  ops::Fp8Weight fp8_rows(const std::string& prefix) {
    return {matrix_rows<e4m3>(prefix + ".weight"), matrix_rows<e8m0>(prefix + ".scale")};
  }
  ops::Fp8Weight fp8_columns(const std::string& prefix) {
    return {matrix_columns<e4m3>(prefix + ".weight"), matrix_columns<e8m0>(prefix + ".scale")};
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
    a.wq_b = fp8_rows(prefix + ".wq_b");
    a.wo_a = fp8_rows(prefix + ".wo_a");
    a.wo_b = fp8_columns(prefix + ".wo_b");
    a.q_norm = vector<bf16>(prefix + ".q_norm.weight");
    a.kv_norm = vector<bf16>(prefix + ".kv_norm.weight");
    a.sink = sink(prefix + ".attn_sink");
    if (ratio > 0) a.compressor = compressor(prefix + ".compressor");
    if (ratio == 4) {
      a.indexer = IndexerWeights{fp8(prefix + ".indexer.wq_b"), matrix<bf16>(prefix + ".indexer.weights_proj.weight"),
                                 compressor(prefix + ".indexer.compressor")};
    }
    return a;
  }

  View<const float, 1> sink(const std::string& name) {
    if (shard_.size == 1) return vector<float>(name);
    const int64_t heads = source_.info(name).count() / shard_.size;
    return View<const float, 1>(part<float>(name, shard_.rank * heads, heads, 0, 1).data, heads);
  }

  /// tid2eid is stored as I64; ops take int32.
  View<const int32_t, 2> expert_table(const std::string& name) {
    const TensorInfo& t = source_.info(name);
    std::byte* to = memory_.allocate(static_cast<size_t>(t.count()) * sizeof(int32_t));
    if (!shapes_only_) source_.put_ids(t, to, memory_);
    count(t.bytes);
    return View<const int32_t, 2>(reinterpret_cast<const int32_t*>(to), t.shape.at(0), t.shape.at(1));
  }

  /// Stacks the same matrix, or the same part of `rows` x `columns` of it, of every expert that `m` has.
  ops::ExpertWeight experts(const std::string& prefix, const MoeWeights& m, const char* which, WeightFormat format,
                            int64_t rows, int64_t columns, int64_t first_row = 0, int64_t first_column = 0) {
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
    std::byte* codes = memory_.allocate(static_cast<size_t>(w.codes_stride * m.count));
    std::byte* scale = memory_.allocate(static_cast<size_t>(w.scale_stride * m.count));
    const int64_t scale_rows = w.scale_stride / w.scale_columns();
    // Blocks of 128 columns have whole bytes of both.
    const auto begin = [&](int64_t bytes) { return first_column * bytes / columns; };
    const TensorPart of_codes{first_row, rows, begin(w.code_row_bytes()), w.code_row_bytes()};
    const TensorPart of_scale{first_row * scale_rows / rows, scale_rows, begin(w.scale_columns()), w.scale_columns()};
    std::vector<float> global;
    for (int i = 0; i < m.count; ++i) {
      const int e = m.first + i;
      copy_part(source_.info(name(e, "weight")), of_codes, codes + i * w.codes_stride);
      copy_part(source_.info(name(e, scale_part)), of_scale, scale + i * w.scale_stride);
      if (w.format != ops::ExpertFormat::nvfp4) continue;
      global.push_back(shapes_only_ ? 1.0f : source_.factor(source_.info(name(e, "weight_scale_2"))));
    }
    if (!global.empty()) {
      std::byte* at = memory_.allocate(global.size() * sizeof(float));
      if (!shapes_only_) memory_.upload(at, std::as_bytes(std::span(global)));
      w.global_scale = reinterpret_cast<const float*>(at);
    }
    const bool bytes = options_.fast && ops::bytes_suit(w.format, rows, columns, memory_.device().info());
    if (w.format != ops::ExpertFormat::fp8)
      w.order = ops::order_codes(codes, w.codes_stride * m.count,
                                 bytes ? ops::CodeOrder::bytes : ops::CodeOrder::halves, memory_.device());
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
    // The inner width of all experts is cut where every rank gets whole blocks of 128, which share a scale; otherwise
    // a rank has some of the experts.
    const bool narrow = inner % (int64_t{128} * shard_.size) == 0;
    m.count = narrow ? config_.num_experts : config_.num_experts / shard_.size;
    m.first = narrow ? 0 : shard_.rank * m.count;
    const int64_t own = narrow ? inner / shard_.size : inner, first = narrow ? shard_.rank * own : 0;
    m.w1 = experts(prefix, m, "w1", format, own, d, first, 0);
    m.w3 = experts(prefix, m, "w3", format, own, d, first, 0);
    m.w2 = experts(prefix, m, "w2", format, d, own, 0, first);
    // The same for the shared expert, which otherwise rank 0 has.
    const std::string shared = prefix + ".shared_experts.";
    const bool cut = source_.info(shared + "w1.weight").shape.at(0) % (int64_t{128} * shard_.size) == 0;
    if (!cut && shard_.rank > 0) return m;
    m.shared_w1 = cut ? fp8_rows(shared + "w1") : fp8(shared + "w1");
    m.shared_w3 = cut ? fp8_rows(shared + "w3") : fp8(shared + "w3");
    m.shared_w2 = cut ? fp8_columns(shared + "w2") : fp8(shared + "w2");
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

  MtpWeights mtp() {
    MtpWeights m;
    m.block = block("mtp.0", 0, false, layout_.draft_experts);
    m.e_proj = fp8("mtp.0.e_proj"), m.h_proj = fp8("mtp.0.h_proj");
    m.enorm = vector<bf16>("mtp.0.enorm.weight"), m.hnorm = vector<bf16>("mtp.0.hnorm.weight");
    m.head = head("mtp.0.");
    return m;
  }

  const WeightSource& source_;
  WeightMemory& memory_;
  const ModelConfig& config_;
  const CheckpointLayout& layout_;
  const LoadOptions& options_;
  const Shard shard_;
  bool shapes_only_;
  uint64_t done_ = 0;
};

Weights load(const WeightSource& source, std::shared_ptr<WeightMemory> memory, const LoadOptions& options,
             bool shapes_only) {
  Weights w = Loader(source, *memory, options, shapes_only).load();
  w.memory = std::move(memory);
  w.layout = source.layout();
  w.shard = options.shard;
  return w;
}

}  // namespace

void check_shards(const ModelConfig& c, int size) {
  const auto divides = [&](int64_t n, const char* what) {
    if (n % size != 0)
      fail("tensor parallel over {} ranks: the model's {} {} do not divide; choose a divisor of {}", size, n, what, n);
  };
  if (size < 1) fail("tensor parallel over {} ranks: at least 1", size);
  divides(c.o_groups, "groups of heads (o_groups)");
  if (c.moe_intermediate_size % (int64_t{128} * size) != 0) divides(c.num_experts, "routed experts");
  divides(c.vocab_size, "rows of the vocabulary");
  if (size > 1 && c.o_lora_rank % 128 != 0)
    fail("tensor parallel: o_lora_rank {} is no multiple of the 128 columns that share a scale", c.o_lora_rank);
}

std::vector<std::shared_ptr<ops::ComputeDevice>> Weights::devices() const {
  std::vector<std::shared_ptr<ops::ComputeDevice>> all{memory->shared_device()};
  for (const auto& other : others) all.push_back(other->memory->shared_device());
  return all;
}

std::unique_ptr<WeightSource> checkpoint_source(Checkpoint checkpoint) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint));
}
std::unique_ptr<WeightSource> checkpoint_source(const Checkpoint* checkpoint) {
  return std::make_unique<CheckpointSource>(checkpoint);
}

Weights weight_shapes(const WeightSource& source, std::shared_ptr<WeightMemory> memory, const LoadOptions& options) {
  return load(source, std::move(memory), options, true);
}

size_t weight_bytes(const WeightSource& source, const LoadOptions& options) {
  SizeMemory size(ops::host_device());
  Loader(source, size, options, true).load();
  return size.allocated();
}

Weights load_weights(const WeightSource& source, std::shared_ptr<WeightMemory> memory, const LoadOptions& options) {
  memory->reserve(weight_bytes(source, options));
  Weights w = load(source, std::move(memory), options, false);
  source.release();
  return w;
}

Weights load_weights(const Checkpoint& checkpoint, std::shared_ptr<WeightMemory> memory, const LoadOptions& options) {
  return load_weights(*checkpoint_source(&checkpoint), std::move(memory), options);
}

}  // namespace fathom
