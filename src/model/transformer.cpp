#include "model/transformer.h"

#include <algorithm>

#include "model/rank_threads.h"

namespace fathom {
Transformer::Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                         bool draft_features)
    : weights_(weights),
      device_(weights.memory->device()),
      memory_(config, draft_features, device_, weights.shard),
      block_(config, ops, device_),
      batch_memory_(device_) {
  if (weights.shard.size == 1 || device_.only_counts()) return;
  ranks_ = std::make_unique<RankThreads>(config, weights, ops, draft_features);
  block_.set_communicator(&ranks_->communicator());
}

Transformer::Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                         dist::Communicator& rank, bool draft_features)
    : weights_(weights),
      device_(weights.memory->device()),
      memory_(config, draft_features, device_, weights.shard),
      block_(config, ops, device_),
      batch_memory_(device_) {
  block_.set_communicator(&rank);
}

void Transformer::set_layers(int rank, std::span<const LayerCache> layers) {
  if (ranks_) ranks_->set_layers(rank, layers);
}

void Transformer::on_ranks(
    const std::function<void(int rank, Transformer& model, std::span<const LayerCache> layers)>& work) {
  if (!ranks_) return work(0, *this, {});
  ranks_->run(work, [&] {
    work(0, *this, {});
    device_.synchronize("running a step");
  });
}

Transformer::~Transformer() {
  recorded_.clear();  // before the ranks, whose sums are part of them
  if (trace_) end_trace();
}

void Transformer::set_recorder(Recorder* recorder) {
  if (recorder == recorder_) return;
  if (trace_) end_trace();
  recorder_ = recorder;
  if (recorder) {
    trace_problem_.clear();
    trace_ = device_.kernel_trace(trace_problem_);
    try {
      if (trace_) trace_->start();
    } catch (const Error& e) {  // operation by operation then, as without CUPTI
      trace_problem_ = e.what(), trace_ = nullptr;
    }
    if (trace_) recorder->describe_device(device_.facts());
  }
  block_.set_recorder(recorder, !trace_);
}

/// Whatever fails, the recorder is let go: it may be gone when this returns.
void Transformer::end_trace() {
  Recorder* const recorder = std::exchange(recorder_, nullptr);
  ops::KernelTrace* const trace = std::exchange(trace_, nullptr);
  const std::vector<TracedStep> steps = std::exchange(traced_, {});
  block_.set_recorder(nullptr, false);
  try {
    device_.synchronize("ending a profile");
    std::vector<SpanRecord> ops;
    recorder->for_each([&](const SpanRecord& span) {
      if (span.category == kOpCategory) ops.push_back(span);
    });
    recorder->add_device_spans(name_kernels(trace->stop(), steps, std::move(ops)));
  } catch (const Error& e) {
    trace_problem_ = e.what();
  }
}

void Transformer::record_steps(bool on) {
  if (!trace_) return;
  block_.set_recorder(nullptr, false);
  on ? trace_->resume() : trace_->pause();
  if (on) block_.set_recorder(recorder_, false);
}

const Activations& Transformer::step(const StepBatch& batch, std::span<const LayerCache> layers, Fetch what) {
  StepSpan span(block_.recorder(), batch.prefill_tokens, batch.ids.size[0] - batch.prefill_tokens);
  if (ranks_) {
    ranks_->run(batch, {records(), block_.dry()}, [&] {
      launch_and_fetch(batch, layers, what);
      device_.synchronize("running a step");
    });
  } else {
    launch_and_fetch(batch, layers, what);
  }
  return result_;
}

void Transformer::launch(const StepBatch& batch, std::span<const LayerCache> layers) {
  if (!run_recorded(batch, layers)) run(batch_memory_.place(batch), layers);
}

void Transformer::launch_and_fetch(const StepBatch& batch, std::span<const LayerCache> layers, Fetch what) {
  launch(batch, layers);
  result_ = block_.act;
  result_.logits.size[0] = result_.token.size[0] = batch.logit_rows.size[0];  // without those that fill up
  if (device_.shares_host_memory())
    result_.token = {};
  else
    fetch(what);
}

void Transformer::run(const StepBatch& batch, std::span<const LayerCache> layers) {
  begin(batch);
  embed(batch);
  run_blocks(batch, layers, 0, config().num_layers);
  if (batch.logit_rows.size[0] == 0) return;
  head(batch);
  const bool leads = !block_.communicator() || block_.communicator()->rank() == 0;
  if (!device_.shares_host_memory() && leads) block_.choose(batch.sampling);
}

/// Whether steps may be recorded now. All ranks must agree: a recorded step has other sizes.
bool Transformer::records() const {
  return use_graphs_ && !probe_ && !(block_.recorder() && !trace_);
}

/// False when this step is none to be recorded. The first step of a size runs op by op, which also makes all scratch
/// memory, and is then recorded.
bool Transformer::run_recorded(const StepBatch& batch, std::span<const LayerCache> layers) {
  recorded_anew_ = false;
  if (device_.shares_host_memory() || !records()) return false;
  const auto shape = decode_shape(batch);
  if (!shape) return false;
  const StepBatch& placed = batch_memory_.place(batch, *shape);
  const auto same = [&](const Recorded& r) {
    return r.shape == *shape && r.layers == layers.data() && r.table == block_.table();
  };
  const auto now = [&] {
    return std::array<int64_t, 3>{memory_.generation(), block_.workspace_generation(), batch_memory_.generation()};
  };
  if (generation_ == now()) {
    const auto at = std::find_if(recorded_.begin(), recorded_.end(), same);
    if (at != recorded_.end()) {
      begin(placed);
      at->graph->replay();
      if (trace_ && block_.recorder()) traced_.push_back({at->ops, block_.recorder()->current_step()});
      return true;
    }
  }
  run(placed, layers);
  if (generation_ != now()) recorded_.clear(), generation_ = now();  // they point to memory that is gone
  auto marks = std::make_shared<std::vector<OpMark>>();
  block_.set_marks(marks.get());
  auto graph = device_.capture([&] { run(placed, layers); });
  block_.set_marks(nullptr);
  if (graph) recorded_.push_back({*shape, layers.data(), block_.table(), std::move(graph), std::move(marks)});
  recorded_anew_ = true;
  return true;
}

void Transformer::prepare(int64_t tokens, int64_t rows, int64_t sequences, int64_t context,
                          std::span<const LayerCache> layers) {
  if (device_.shares_host_memory() || (block_.recorder() && !trace_)) return;
  // Memory is made without sums over the ranks: making it may have to wait for work that would wait for another rank.
  block_.set_dry(true);
  const bool record = std::exchange(use_graphs_, false);
  const auto run_idle = [&](const BatchShape& shape, int64_t logits) {
    IdleBatch idle(config(), shape.tokens, logits, context);
    idle.batch.pages.size[1] = shape.pages, idle.batch.index128.size[1] = shape.entries128;
    step(idle.batch, layers);
  };
  IdleBatch largest(config(), tokens, rows, context);
  step(largest.batch, layers);
  for (const BatchShape& shape : fullest_shapes(tokens, context, device_.info().sm_count)) run_idle(shape, 1);
  for (const bool recording :
       {false, true}) {  // first all scratch memory, which some ops want more of for fewer tokens
    use_graphs_ = recording;
    block_.set_dry(!recording);
    for (const BatchShape& shape : decode_shapes(sequences, context)) run_idle(shape, shape.tokens);
    if (!record) break;
  }
  block_.set_dry(false);
  use_graphs_ = record;
}

void Transformer::set_ops(const ops::OpTable& ops) {
  block_.set_table(ops);
  if (ranks_) ranks_->set_ops(ops);
}

const Activations& Transformer::fetch_logits() {
  if (!device_.shares_host_memory() && !result_.logits.data) fetch(Fetch::logits);
  return result_;
}

void Transformer::fetch(Fetch what) {
  const int64_t rows = result_.token.size[0];
  const auto download = [&](ops::DeviceBuffer& to, const void* from, size_t bytes) {
    if (bytes > to.size()) {
      to = ops::DeviceBuffer();
      to = ops::DeviceBuffer(device_, bytes, ops::DeviceBuffer::Kind::host);
    }
    device_.download(to.data(), from, bytes);
    return to.data();
  };
  const auto* tokens = download(tokens_, block_.act.token.data, static_cast<size_t>(rows) * sizeof(int32_t));
  result_.token.data = reinterpret_cast<int32_t*>(const_cast<std::byte*>(tokens));
  const int64_t vocabulary = config().vocab_size;
  result_.logits = View<float, 2>(static_cast<float*>(nullptr), rows, vocabulary);
  if (what == Fetch::tokens) return;
  result_.logits.data = reinterpret_cast<float*>(
      download(logits_, block_.act.logits.data, static_cast<size_t>(rows * vocabulary) * sizeof(float)));
}

Activations& Transformer::begin(const StepBatch& batch) {
  block_.act = memory_.get(batch.ids.size[0], batch.logit_rows.size[0]);
  return block_.act;
}

void Transformer::embed(const StepBatch& batch) {
  block_.embed(weights_.embed, batch.ids);
}

void Transformer::head(const StepBatch& batch) {
  block_.head(weights_.head_mix, weights_.head, batch.logit_rows);
}

void Transformer::run_blocks(const StepBatch& batch, std::span<const LayerCache> layers, int from, int to) {
  bool finish = false;  // a half is waiting for its hc_post
  for (int i = from; i < to; ++i) {
    const BlockWeights& block = weights_.blocks[static_cast<size_t>(i)];
    block_.mix(&block.attn_mix, finish);
    if (finish) keep_features(i - 1);
    attention(batch, block, layers[static_cast<size_t>(i)]);
    block_.mix(&block.ffn_mix, true);
    const bool last = i + 1 == to || probe_;  // a probe sees streams and y of the half before it ends
    block_.moe(batch.ids, block.moe, last ? nullptr : &weights_.blocks[static_cast<size_t>(i + 1)].attn_mix);
    if (probe_) probe_(i);
    finish = true;
  }
  if (finish) {
    block_.mix(nullptr, true);
    keep_features(to - 1);
  }
}

namespace {
constexpr int kCompression = 0, kIndexWeights = 1;  // branches of the device
}

void Transformer::attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const Activations& a = block_.act;
  const bool together = block_.project_together(block.attn);
  const bool compressed = together && block_.project_queries_and_compress(batch, block, cache);
  if (block.ratio > 0 && !compressed) {  // needs nothing but x: beside the projections
    device_.fork(kCompression, [&] {
      if (!together) block_.project_compressor(block.attn);
      block_.compress(batch, block, cache);
    });
    if (block.ratio == 4 && !together) device_.fork(kIndexWeights, [&] { block_.index_weights(*block.attn.indexer); });
  }
  if (!together) block_.project_latents(block.attn);
  if (!compressed) block_.project_queries(block.attn);
  block_.attention_inputs(block, batch.position, batch.window_slot, cache.window, cache.format);
  if (block.ratio > 0 && !compressed) device_.join(kCompression);
  if (block.ratio == 4) {
    if (!together) device_.join(kIndexWeights);
    block_.select(batch, cache);
  }
  ops::RowSet extra;
  if (block.ratio == 4) extra = {cache.entries, a.selected, a.selected_length};
  if (block.ratio == 128) extra = {cache.entries, batch.index128, batch.length128};
  block_.attend(block, batch.position, {cache.window, batch.window_index, batch.window_length}, extra, cache.format);
  block_.project_output(block.attn, &block.ffn_mix);
}

void Transformer::keep_features(int layer) {
  if (block_.act.features.empty()) return;
  const auto& targets = config().dspark->target_layers;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != layer) continue;
    View<bf16, 2> mean = block_.act.features;  // columns of this target, strided rows
    mean.data += static_cast<int64_t>(i) * config().hidden_size;
    mean.size[1] = config().hidden_size;
    block_.stream_mean(mean);
  }
}

}  // namespace fathom
