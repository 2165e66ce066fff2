// DeepSeek-V4 forward pass, written once in terms of ops. One call of step() runs a batch of tokens, of any number of
// sequences, prompt chunks and single tokens mixed, and writes their state to the cache.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/batch_memory.h"
#include "model/block_ops.h"
#include "model/kernel_spans.h"

namespace fathom {
class RankThreads;
}

namespace fathom {

/// What a step brings back from the device. `tokens`: Activations::token alone (host memory; where the host has the
/// device's memory, `token` is empty and logits are there); logits are empty until they are fetched.
enum class Fetch { logits, tokens };

class Transformer {
 public:
  /// `config`, `weights` outlive the object. Where `weights` are rank 0's of several, the other ranks run along on
  /// threads that the object has, and everything said here is about all of them; their caches come by set_layers().
  Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, bool draft_features = false);

  /// Spans of the following steps go there; null: nowhere. On a GPU they come from CUPTI, steps run as they do without,
  /// and the kernels are handed over when the recorder is taken away; without CUPTI (trace_problem()) every op is
  /// launched and waited for by itself. `recorder` must outlive its use here.
  void set_recorder(Recorder* recorder);
  /// With a kernel trace: the following steps leave nothing in the recorder, and their kernels are not traced; or they
  /// do again.
  void record_steps(bool on);
  bool traces_kernels() const { return trace_ != nullptr; }
  /// Why there is no kernel trace; empty when there is one or none is needed.
  const std::string& trace_problem() const { return trace_problem_; }
  ~Transformer();

  /// Runs the batch, whose arrays are in host memory, through all layers; layers.size() = num_layers. The result's
  /// views hold until the next call: logits [R, V] of the rows in batch.logit_rows and the token of each, in
  /// host memory (see Fetch), all others (hidden states, draft features [T, ...]) in the device's. Steps of single
  /// tokens are recorded once for each size and replayed, where the device can; the bits are the same.
  const Activations& step(const StepBatch& batch, std::span<const LayerCache> layers, Fetch fetch = Fetch::logits);
  /// The logits of the last step, which fetched tokens alone.
  const Activations& fetch_logits();

  /// Makes all scratch memory for steps of up to `tokens` tokens (`rows` of them with logits) and records the steps of
  /// up to `sequences` sequences, for contexts of up to `context` tokens, so that later steps allocate nothing. Writes
  /// nothing to the cache. Does nothing where steps are not recorded.
  void prepare(int64_t tokens, int64_t rows, int64_t sequences, int64_t context, std::span<const LayerCache> layers);
  /// Called behind the experts of each block, in steps that are launched op by op; null: not. It may read
  /// activations().
  void set_probe(std::function<void(int layer)> probe) { probe_ = std::move(probe); }
  /// Other variants of the operations, of the same device, from the next step on. What was recorded with these stays
  /// for when they come back.
  void set_ops(const ops::OpTable& ops);
  /// Whether the last step was of a size not met before, and recorded: later ones of that size are faster.
  bool recorded_anew() const { return recorded_anew_; }
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

  /// What rank `rank` > 0 reads and writes in place of step()'s `layers`, which are rank 0's: a cache that is its twin.
  void set_layers(int rank, std::span<const LayerCache> layers);
  /// `work` on every rank, with its model and cache: here for rank 0, which gets no layers, and on the threads of the
  /// others. Ends when all have, and waits for their devices if there are several. Errors as those of a step.
  void on_ranks(const std::function<void(int rank, Transformer& model, std::span<const LayerCache> layers)>& work);
  /// This rank's, of several; null: the only one.
  dist::Communicator* rank() const { return block_.communicator(); }
  /// "peer memory"; empty on one rank.
  std::string communicator() const { return block_.communicator() ? block_.communicator()->name() : ""; }

  const ModelConfig& config() const { return block_.config(); }
  const Weights& weights() const { return weights_; }
  size_t scratch_bytes() const { return memory_.bytes() + block_.workspace_bytes(); }
  ops::ComputeDevice& device() const { return device_; }

 private:
  friend class RankThreads;
  /// One of the other ranks.
  Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, dist::Communicator& rank,
              bool draft_features);
  void launch(const StepBatch& batch, std::span<const LayerCache> layers);
  void launch_and_fetch(const StepBatch& batch, std::span<const LayerCache> layers, Fetch what);
  void attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void keep_features(int layer);
  void run(const StepBatch& batch, std::span<const LayerCache> layers);
  bool run_recorded(const StepBatch& batch, std::span<const LayerCache> layers);
  bool records() const;
  void fetch(Fetch what);

  /// A recorded step: what it depends on besides the data.
  struct Recorded {
    BatchShape shape;
    const LayerCache* layers;
    ops::OpTable table;
    std::unique_ptr<ops::DeviceGraph> graph;
    std::shared_ptr<const std::vector<OpMark>> ops;
  };
  void end_trace();

  const Weights& weights_;
  ops::ComputeDevice& device_;
  ActivationMemory memory_;
  BlockOps block_;
  BatchMemory batch_memory_;
  Activations result_;
  ops::DeviceBuffer logits_, tokens_;  // in host memory
  bool use_graphs_ = true, recorded_anew_ = false;
  std::function<void(int)> probe_;
  Recorder* recorder_ = nullptr;
  ops::KernelTrace* trace_ = nullptr;  // running
  std::string trace_problem_;
  std::vector<TracedStep> traced_;
  std::vector<Recorded> recorded_;
  std::array<int64_t, 3> generation_{};  // of the memory that graphs point to
  std::unique_ptr<RankThreads> ranks_;   // the other ranks; null: there are none
};

}  // namespace fathom
