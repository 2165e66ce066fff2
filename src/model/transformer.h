// DeepSeek-V4 forward pass, written once in terms of ops. One call of step() runs a batch of tokens, of any number of
// sequences, prompt chunks and single tokens mixed, and writes their state to the cache.
#pragma once

#include <span>

#include "base/recorder.h"
#include "model/activations.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace fathom {

class Transformer {
 public:
  /// `config`, `weights` outlive the object. `recorder` may be null.
  Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, bool draft_features = false);

  void set_recorder(Recorder* recorder) { recorder_ = recorder; }

  /// Runs the batch through all layers; layers.size() = num_layers. The result's views (logits [R, V] of the rows in
  /// batch.logit_rows, hidden states, draft features [T, ...]) hold until the next call.
  const Activations& step(const StepBatch& batch, std::span<const LayerCache> layers);

  /// The parts of step(), for checks that feed exact streams. begin() sizes the scratch memory; run_blocks() runs
  /// blocks [from, to) on activations().streams and leaves the streams after the last of them there.
  Activations& begin(const StepBatch& batch);
  void embed(const StepBatch& batch);
  void run_blocks(const StepBatch& batch, std::span<const LayerCache> layers, int from, int to);
  void head(const StepBatch& batch);
  Activations& activations() { return act_; }

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  size_t scratch_bytes() const { return memory_.bytes() + workspace_.size(); }

 private:
  template <typename Args>
  void run(const ops::Variant<Args>* op, const char* name, const Args& args, int64_t bytes, int64_t flops,
           std::array<int64_t, 4> shape);

  void mix(const MixWeights* next, bool finish);
  void attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void compress(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void select(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void project_queries(const BlockWeights& block);
  void attend(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void moe(const StepBatch& batch, const MoeWeights& weights);
  void keep_features(int layer);
  View<const float, 1> frequencies(int ratio) const;

  const ModelConfig& config_;
  const Weights& weights_;
  ops::OpTable ops_;
  Recorder* recorder_ = nullptr;
  std::vector<float> plain_freq_, compressed_freq_;
  ActivationMemory memory_;
  Activations act_;
  std::vector<std::byte> workspace_;
};

template <typename Args>
void Transformer::run(const ops::Variant<Args>* op, const char* name, const Args& args, int64_t bytes, int64_t flops,
                      std::array<int64_t, 4> shape) {
  ops::Launch launch;
  launch.device.backend = op->backend;
  if (op->workspace) {
    constexpr size_t kAlignment = 256;
    const size_t needed = op->workspace(args, launch.device) + kAlignment;
    if (needed > workspace_.size()) workspace_.resize(needed);
    const auto at = reinterpret_cast<uintptr_t>(workspace_.data());
    launch.workspace = reinterpret_cast<void*>((at + kAlignment - 1) / kAlignment * kAlignment);
  }
  Span span(recorder_, name, bytes, flops, shape);
  op->run(args, launch);
}

}  // namespace fathom
