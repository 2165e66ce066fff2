// DeepSeek-V4 forward pass, written once in terms of ops. One call of step() runs a batch of tokens, of any number of
// sequences, prompt chunks and single tokens mixed, and writes their state to the cache.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "model/batch_memory.h"
#include "model/block_ops.h"

namespace fathom {

class Transformer {
 public:
  /// `config`, `weights` outlive the object. `recorder` may be null.
  Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, bool draft_features = false);

  void set_recorder(Recorder* recorder) { block_.set_recorder(recorder); }

  /// Runs the batch, whose arrays are in host memory, through all layers; layers.size() = num_layers. The result's
  /// views hold until the next call: logits [R, V] of the rows in batch.logit_rows, in host memory, all others (hidden
  /// states, draft features [T, ...]) in the device's. Steps of single tokens are recorded once for each size and
  /// replayed, where the device can; the bits are the same.
  const Activations& step(const StepBatch& batch, std::span<const LayerCache> layers);

  /// Makes all scratch memory for steps of up to `tokens` tokens (`rows` of them with logits) and records the steps of
  /// up to `sequences` sequences, for contexts of up to `context` tokens, so that later steps allocate nothing. Writes
  /// nothing to the cache. Does nothing where steps are not recorded.
  void prepare(int64_t tokens, int64_t rows, int64_t sequences, int64_t context, std::span<const LayerCache> layers);
  /// Off: every step is launched op by op.
  void use_graphs(bool on) { use_graphs_ = on; }

  /// The parts of step(), for checks that feed exact streams; arrays in the device's memory. begin() sizes the scratch
  /// memory; run_blocks() runs blocks [from, to) on activations().streams and leaves the streams after the last of them
  /// there.
  Activations& begin(const StepBatch& batch);
  void embed(const StepBatch& batch);
  void run_blocks(const StepBatch& batch, std::span<const LayerCache> layers, int from, int to);
  void head(const StepBatch& batch);
  Activations& activations() { return block_.act; }

  const ModelConfig& config() const { return block_.config(); }
  const Weights& weights() const { return weights_; }
  size_t scratch_bytes() const { return memory_.bytes() + block_.workspace_bytes(); }
  ops::ComputeDevice& device() const { return device_; }

 private:
  void attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void keep_features(int layer);
  void run(const StepBatch& batch, std::span<const LayerCache> layers);
  bool run_recorded(const StepBatch& batch, std::span<const LayerCache> layers);
  void fetch_logits(int64_t rows);

  /// A recorded step: what it depends on besides the data.
  struct Recorded {
    BatchShape shape;
    const LayerCache* layers;
    std::unique_ptr<ops::DeviceGraph> graph;
  };

  const Weights& weights_;
  ops::ComputeDevice& device_;
  ActivationMemory memory_;
  BlockOps block_;
  BatchMemory batch_memory_;
  Activations result_;
  ops::DeviceBuffer logits_;  // in host memory
  bool use_graphs_ = true;
  std::vector<Recorded> recorded_;
  std::array<int64_t, 3> generation_{};  // of the memory that graphs point to
};

}  // namespace fathom
