// The parameters of a model as ops take them: views into memory that a Weights object owns, in checkpoint precision.
//
// Shapes are in the comments with d = hidden_size, H = num_heads, E = num_experts, I = moe_intermediate_size.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/view.h"
#include "formats/checkpoint.h"
#include "formats/inventory.h"
#include "ops/compute_device.h"
#include "ops/weights.h"

namespace fathom {

/// Memory for weights on one device: allocation and upload. Lives as long as the views made from it.
class WeightMemory {
 public:
  virtual ~WeightMemory() = default;
  /// Takes this much at once for the following allocations, so that none is wasted.
  virtual void reserve(size_t) {}
  /// 64-byte aligned.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void upload(std::byte* to, std::span<const std::byte> from) = 0;
  virtual size_t allocated() const = 0;
  virtual std::shared_ptr<ops::ComputeDevice> shared_device() const = 0;
  ops::ComputeDevice& device() const { return *shared_device(); }
};

/// Only adds up what is asked for; its addresses must not be read or written.
class SizeMemory final : public WeightMemory {
 public:
  explicit SizeMemory(std::shared_ptr<ops::ComputeDevice> device) : device_(std::move(device)) {}
  std::byte* allocate(size_t bytes) override {
    auto* at = reinterpret_cast<std::byte*>(kBase + allocated_);
    allocated_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  void upload(std::byte*, std::span<const std::byte>) override {}
  size_t allocated() const override { return allocated_; }
  std::shared_ptr<ops::ComputeDevice> shared_device() const override { return device_; }

 private:
  static constexpr size_t kAlignment = 256, kBase = size_t{1} << 44;
  std::shared_ptr<ops::ComputeDevice> device_;
  size_t allocated_ = 0;
};

std::unique_ptr<WeightMemory> make_memory(std::shared_ptr<ops::ComputeDevice> device);
inline std::unique_ptr<WeightMemory> make_host_memory() {
  return make_memory(ops::host_device());
}

/// Parameters of one hc_pre: fn [24, 4d], scale [3], base [24] and the norm [d] behind it.
struct MixWeights {
  View<const float, 2> fn;
  View<const float, 1> scale, base;
  View<const bf16, 1> norm;
};

struct CompressorWeights {
  View<const float, 2> ape;        // [ratio, c*h]
  View<const bf16, 2> wkv, wgate;  // [c*h, d]
  View<const bf16, 1> norm;        // [h]
};

struct IndexerWeights {
  ops::Fp8Weight wq_b;               // [index_heads * 128, q_lora]
  View<const bf16, 2> weights_proj;  // [index_heads, d]
  CompressorWeights compressor;      // h = 128
};

struct AttentionWeights {
  ops::Fp8Weight wq_a, wkv;   // [q_lora, d], [512, d]
  ops::Fp8Weight wq_b;        // [H * 512, q_lora]
  ops::Fp8Weight wo_a, wo_b;  // [groups * o_lora, H / groups * 512], [d, groups * o_lora]
  View<const bf16, 1> q_norm, kv_norm;
  View<const float, 1> sink;                    // [H]
  std::optional<CompressorWeights> compressor;  // ratio > 0; h = 512
  std::optional<IndexerWeights> indexer;        // ratio 4
};

struct MoeWeights {
  int32_t first = 0, count = 0;  // routed experts that w1, w2, w3 hold: all, or a rank's
  View<const bf16, 2> gate;      // [E, d]
  View<const float, 1> bias;     // [E]; empty in hash layers
  View<const int32_t, 2> table;  // [V, k]; hash layers only
  ops::ExpertWeight w1, w2, w3;  // of `count` experts
  ops::Fp8Weight shared_w1, shared_w2, shared_w3;
};

struct BlockWeights {
  int ratio = 0;
  MixWeights attn_mix, ffn_mix;
  AttentionWeights attn;
  MoeWeights moe;
};

struct HeadWeights {
  View<const float, 2> fn;           // [4, 4d]
  View<const float, 1> scale, base;  // [1], [4]
  View<const bf16, 1> norm;          // [d]
};

struct DsparkWeights {
  std::vector<BlockWeights> stages;
  ops::Fp8Weight main_proj;       // [d, targets * d]
  View<const bf16, 1> main_norm;  // [d]
  HeadWeights head;
  View<const bf16, 2> markov_w1, markov_w2;  // [V, r]
  View<const bf16, 1> confidence;            // [d + r]
};

/// The MTP block of preview checkpoints. Spec 2.8.
struct MtpWeights {
  BlockWeights block;                // ratio 0
  ops::Fp8Weight e_proj, h_proj;     // [d, d]
  View<const bf16, 1> enorm, hnorm;  // [d]
  HeadWeights head;
};

/// One part of a model that is divided over several ranks. Spec 2.10, docs/decisions/0008: a rank has its share of the
/// query heads (wq_b, sink, wo_a, columns of wo_b), of the routed experts, of the shared expert's inner width and of
/// the rows of `head`. All else is whole on every rank.
struct Shard {
  int rank = 0, size = 1;
  friend bool operator==(const Shard&, const Shard&) = default;
};

/// Throws Error, saying what does not divide, when the model cannot be divided over `size` ranks.
void check_shards(const ModelConfig& config, int size);

struct Weights {
  View<const bf16, 2> embed, head;  // [V, d]; a rank's head [V / size, d]
  HeadWeights head_mix;
  std::vector<BlockWeights> blocks;
  std::optional<DsparkWeights> dspark;  // drafts, loaded only when asked for: these or the next
  std::optional<MtpWeights> mtp;
  std::shared_ptr<WeightMemory> memory;
  CheckpointLayout layout;
  Shard shard;
  std::vector<std::shared_ptr<const Weights>> others;  // rank 0 of several: those of ranks 1, 2, ...

  /// Of all ranks, this one first.
  std::vector<std::shared_ptr<ops::ComputeDevice>> devices() const;
};

struct LoadOptions {
  bool drafts = false;  // load the draft stages too; the MTP block of a whole model only
  Shard shard{};        // which part to load
  /// Called with the bytes loaded so far and in all; may be empty.
  std::function<void(uint64_t done, uint64_t total)> progress;
  bool fast = false;  // for fast kernels alone: fp4 codes in the order that they want
};

/// Some rows of a row-major tensor, and some bytes of each.
struct TensorPart {
  int64_t first_row = 0, rows = 0;
  int64_t first_byte = 0, bytes = 0;
};

/// Where the tensors of a model come from: a checkpoint, or a generator.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const CheckpointLayout& layout() const = 0;
  /// "fairy", "v4-flash,experts=160".
  virtual std::string name() const = 0;
  virtual bool synthetic() const = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual size_t tensor_count() const = 0;
  /// Throws Error when there is no such tensor.
  virtual const TensorInfo& info(const std::string& name) const = 0;
  /// Puts a tensor into memory; throws Error for values that a model cannot have.
  virtual void put(const TensorInfo& tensor, std::byte* to, WeightMemory& memory) const = 0;
  /// The same for a part, densely.
  virtual void put_part(const TensorInfo& tensor, const TensorPart& part, std::byte* to,
                        WeightMemory& memory) const = 0;
  /// put() for a table of I64 ids, as int32.
  virtual void put_ids(const TensorInfo& tensor, std::byte* to, WeightMemory& memory) const = 0;
  /// The value of a tensor that holds one (NVFP4's weight_scale_2).
  virtual float factor(const TensorInfo& tensor) const = 0;
  /// Everything was read that will be.
  virtual void release() const {}
};

/// Checks the inventory first; values are checked as they are loaded. Drops the file's pages as it goes. The second one
/// does not own the checkpoint.
std::unique_ptr<WeightSource> checkpoint_source(Checkpoint checkpoint);
std::unique_ptr<WeightSource> checkpoint_source(const Checkpoint* checkpoint);

/// Puts all parameters into memory: as many bytes as weight_bytes() says, taken at once. Throws Error with the tensor's
/// name when scales or fp32 parameters are not finite or expert ids out of range.
Weights load_weights(const WeightSource& source, std::shared_ptr<WeightMemory> memory, const LoadOptions& options = {});
Weights load_weights(const Checkpoint& checkpoint, std::shared_ptr<WeightMemory> memory,
                     const LoadOptions& options = {});

/// Bytes that load_weights() allocates.
size_t weight_bytes(const WeightSource& source, const LoadOptions& options = {});
/// Views of the right shapes on nothing: for planning on a device that only counts, or for sizes.
Weights weight_shapes(const WeightSource& source, std::shared_ptr<WeightMemory> memory,
                      const LoadOptions& options = {});

}  // namespace fathom
