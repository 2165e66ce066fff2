// The ops of one block on a set of activations: what the backbone and the draft stages have in common.
//
// Holds the op table, RoPE tables, scratch memory for ops and the recorder; knows nothing of sequences.
#pragma once

#include <functional>
#include <span>

#include "base/recorder.h"
#include "dist/communicator.h"
#include "model/activations.h"
#include "model/cost.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace fathom {

/// An op that was run or recorded, for reports.
struct OpMark {
  const char* name = nullptr;
  int64_t bytes = 0, flops = 0;
  int64_t kernels = 0;  // recorded in a graph
};

class BlockOps {
 public:
  /// `device` outlives the object; the ops of the table run on it.
  BlockOps(const ModelConfig& config, const ops::OpTable& ops, ops::ComputeDevice& device);

  /// `wait`: each span is its op's own time, because the device is waited for behind every op.
  void set_recorder(Recorder* recorder, bool wait) { recorder_ = recorder, wait_ = recorder && wait; }
  Recorder* recorder() const { return recorder_; }
  /// This is one rank of several, whose partial results are summed there; null: the only one.
  void set_communicator(dist::Communicator* communicator) { communicator_ = communicator; }
  dist::Communicator* communicator() const { return communicator_; }
  /// Nothing is summed over the ranks: for steps whose results are not used.
  void set_dry(bool on) { dry_ = on; }
  bool dry() const { return dry_; }
  /// Ops leave a mark there; null: not.
  void set_marks(std::vector<OpMark>* marks) { marks_ = marks; }
  size_t workspace_bytes() const;
  /// Changes whenever scratch memory of an op has moved.
  int64_t workspace_generation() const { return generation_; }
  ops::ComputeDevice& device() const { return device_; }

  Activations act;  // what all functions below read and write

  /// Embedding rows into the streams.
  void embed(View<const bf16, 2> table, View<const int32_t, 1> ids);
  /// Ends the half in progress (`finish`) and begins the next one (`next`, may be null).
  /// What has been ended inside the op that computed y (see project_output(), moe()) goes on from there.
  void mix(const MixWeights* next, bool finish);
  /// x -> latent query and KV.
  void project_latents(const AttentionWeights& w);
  /// Latents, compressor rows and index weights of a block that has a compressor, in one launch. False where that
  /// cannot be, and nothing was done.
  bool project_together(const AttentionWeights& w);
  /// Latent query -> all query projections of the block.
  void project_queries(const AttentionWeights& w);
  /// The same with compress() beside it, in two launches. False where that cannot be, and nothing was done.
  bool project_queries_and_compress(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  void write_window(const BlockWeights& block, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                    const ops::KvPool& pool, ops::RowFormat format);
  /// Latent KV -> window rows; queries and index queries in place: together where the table can, else one by one.
  void attention_inputs(const BlockWeights& block, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                        const ops::KvPool& pool, ops::RowFormat format);
  /// x -> compressor rows of the block.
  void project_compressor(const AttentionWeights& w);
  void compress(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache);
  /// How much each index head counts.
  void index_weights(const IndexerWeights& w);
  void select(const StepBatch& batch, const LayerCache& cache);
  /// q, the rows of both sets -> o.
  void attend(const BlockWeights& block, View<const int32_t, 1> position, const ops::RowSet& window,
              const ops::RowSet& extra, ops::RowFormat format);
  /// o -> y. `next`: of the half that begins then, for ops that can end the one in progress; null: they shall not.
  void project_output(const AttentionWeights& w, const MixWeights* next = nullptr);
  /// x -> y; `next` likewise.
  void moe(View<const int32_t, 1> ids, const MoeWeights& m, const MixWeights* next = nullptr);
  void head(const HeadWeights& h, View<const bf16, 2> matrix, View<const int32_t, 1> rows);
  /// The likeliest token of each row of logits.
  void choose(View<const ops::RowSampling, 1> sampling);
  /// Mean of the streams into `mean` [T, d], whose rows may be strided.
  void stream_mean(View<bf16, 2> mean);
  /// act_quant of bf16 rows, after an RMSNorm when `norm` is given.
  void quantize(View<const bf16, 2> x, View<const bf16, 1> norm, const Quantized& out);
  void linear_fp8(const Quantized& x, const ops::Fp8Weight& w, View<bf16, 2> y);

  template <typename Args>
  void run(const ops::Variant<Args>* op, const char* name, const Args& args, int64_t bytes, int64_t flops,
           std::array<int64_t, 4> shape);
  const ops::OpTable& table() const { return ops_; }
  void set_table(const ops::OpTable& ops) { ops_ = ops; }
  const ModelConfig& config() const { return config_; }

 private:
  View<const float, 1> frequencies(int ratio) const;
  ops::LinearFp8Args latents_of(const AttentionWeights& w) const;
  ops::LinearF32Args compressed_of(const AttentionWeights& w) const;
  ops::LinearBf16Args index_weights_of(const IndexerWeights& w) const;
  ops::LinearFp8Args queries_of(const AttentionWeights& w) const;
  /// The end of the half in progress; nothing where it cannot be part of another op on this device.
  ops::HalfEnd half_end(const MixWeights* next);
  /// Has the half ended by `op`, where it can do that.
  template <typename Args>
  void offer_end(const ops::Variant<Args>* op, Args& args, const MixWeights* next);
  cost::Cost end_cost(const ops::HalfEnd& end) const;
  /// Of KV rows, and of index rows where there is an indexer.
  ops::CompressBothArgs compressions_of(const StepBatch& batch, const BlockWeights& block,
                                        const LayerCache& cache) const;
  /// Runs `work`, which is no op of the table, as run() does.
  void run_collective(const char* name, int64_t bytes, std::array<int64_t, 4> shape, const std::function<void()>& work);
  /// y = sum of the ranks' parts. Does nothing on the only rank.
  template <typename T>
  void reduce(View<T, 2> part);
  /// Scratch memory of one op: its own, because some variants keep counters there.
  void* workspace(const void* op, size_t bytes);
  /// Whether amounts of work that depend on data can be read off: only for reports.
  bool can_count() const { return recorder_ && device_.shares_host_memory(); }

  const ModelConfig& config_;
  ops::OpTable ops_;
  ops::ComputeDevice& device_;
  Recorder* recorder_ = nullptr;
  bool wait_ = false;
  std::vector<OpMark>* marks_ = nullptr;
  dist::Communicator* communicator_ = nullptr;
  bool dry_ = false;
  ops::HalfEnd ended_;             // by the op that computed y, for mix(); streams.data == null: it has not ended
  ops::DeviceBuffer frequencies_;  // two tables: ratio 0, the others
  std::vector<std::pair<const void*, ops::DeviceBuffer>> workspaces_;
  int64_t generation_ = 0;
};

template <typename Args>
void BlockOps::offer_end(const ops::Variant<Args>* op, Args& args, const MixWeights* next) {
  args.end = half_end(next);
  if (args.end.streams.data && !op->can_run(args, device_.info())) args.end = {};
}

[[noreturn]] void no_variant(const char* op, std::string_view variant);
/// In a handler: throws Error naming the op; memory that ran out stays what it is.
[[noreturn]] void op_failed(const char* op);

template <typename Args>
void BlockOps::run(const ops::Variant<Args>* op, const char* name, const Args& args, int64_t bytes, int64_t flops,
                   std::array<int64_t, 4> shape) {
  ops::Launch launch;
  launch.device = device_.info();
  launch.stream = device_.stream();
  if (op->workspace) launch.workspace = workspace(op, op->workspace(args, launch.device));
  if (!op->can_run(args, launch.device)) no_variant(name, op->name);
  if (device_.only_counts()) return;
  Span span(recorder_, name, bytes, flops, shape);
  const int64_t before = marks_ ? device_.captured() : 0;
  try {
    op->run(args, launch);
  } catch (...) {
    if (communicator_) op_failed(name);
    throw;
  }
  if (marks_) marks_->push_back({name, bytes, flops, device_.captured() - before});
  if (wait_) device_.synchronize(name);  // the span is the op's own time; and a failure names it
}

}  // namespace fathom
