// DeepSeek-V4 forward pass, written once in terms of ops. One call of step() runs a batch of tokens, of any number of
// sequences, prompt chunks and single tokens mixed, and writes their state to the cache.
#pragma once

#include <span>

#include "model/block_ops.h"

namespace fathom {

class Transformer {
 public:
  /// `config`, `weights` outlive the object. `recorder` may be null.
  Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, bool draft_features = false);

  void set_recorder(Recorder* recorder) { block_.set_recorder(recorder); }

  /// Runs the batch through all layers; layers.size() = num_layers. The result's views (logits [R, V] of the rows in
  /// batch.logit_rows, hidden states, draft features [T, ...]) hold until the next call.
  const Activations& step(const StepBatch& batch, std::span<const LayerCache> layers);

  /// The parts of step(), for checks that feed exact streams. begin() sizes the scratch memory; run_blocks() runs
  /// blocks [from, to) on activations().streams and leaves the streams after the last of them there.
  Activations& begin(const StepBatch& batch);
  void embed(const StepBatch& batch);
  void run_blocks(const StepBatch& batch, std::span<const LayerCache> layers, int from, int to);
  void head(const StepBatch& batch);
  Activations& activations() { return block_.act; }

  const ModelConfig& config() const { return block_.config(); }
  const Weights& weights() const { return weights_; }
  size_t scratch_bytes() const { return memory_.bytes() + block_.workspace_bytes(); }

 private:
  void attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void keep_features(int layer);

  const Weights& weights_;
  ActivationMemory memory_;
  BlockOps block_;
};

}  // namespace fathom
