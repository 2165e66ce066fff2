// The ops of one block on a set of activations: what the backbone and the draft stages have in common.
//
// Holds the op table, RoPE tables, scratch memory for ops and the recorder; knows nothing of sequences.
#pragma once

#include <span>

#include "base/recorder.h"
#include "model/activations.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace fathom {

class BlockOps {
 public:
  BlockOps(const ModelConfig& config, const ops::OpTable& ops);

  void set_recorder(Recorder* recorder) { recorder_ = recorder; }
  Recorder* recorder() const { return recorder_; }
  size_t workspace_bytes() const { return workspace_.size(); }

  Activations act;  // what all functions below read and write

  /// Embedding rows into the streams.
  void embed(View<const bf16, 2> table, View<const int32_t, 1> ids);
  /// Ends the half in progress (`finish`) and begins the next one (`next`, may be null).
  void mix(const MixWeights* next, bool finish);
  /// x -> latent query and KV, then all query projections of the block.
  void project_inputs(const AttentionWeights& w);
  void write_window(const BlockWeights& block, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                    const ops::KvPool& pool, ops::RowFormat format);
  void compress(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void select(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  /// q, the rows of both sets -> o.
  void attend(const BlockWeights& block, View<const int32_t, 1> position, const ops::RowSet& window,
              const ops::RowSet& extra, ops::RowFormat format);
  /// o -> y.
  void project_output(const AttentionWeights& w);
  void moe(View<const int32_t, 1> ids, const MoeWeights& m);
  void head(const HeadWeights& h, View<const bf16, 2> matrix, View<const int32_t, 1> rows);
  /// Mean of the streams into `mean` [T, d], whose rows may be strided.
  void stream_mean(View<bf16, 2> mean);
  /// act_quant of bf16 rows, after an RMSNorm when `norm` is given.
  void quantize(View<const bf16, 2> x, View<const bf16, 1> norm, const Quantized& out);
  void linear_fp8(const Quantized& x, const ops::Fp8Weight& w, View<bf16, 2> y);

  template <typename Args>
  void run(const ops::Variant<Args>* op, const char* name, const Args& args, int64_t bytes, int64_t flops,
           std::array<int64_t, 4> shape);
  const ops::OpTable& table() const { return ops_; }
  const ModelConfig& config() const { return config_; }

 private:
  View<const float, 1> frequencies(int ratio) const;

  const ModelConfig& config_;
  ops::OpTable ops_;
  Recorder* recorder_ = nullptr;
  std::vector<float> plain_freq_, compressed_freq_;
  std::vector<std::byte> workspace_;
};

template <typename Args>
void BlockOps::run(const ops::Variant<Args>* op, const char* name, const Args& args, int64_t bytes, int64_t flops,
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
