#include "model/transformer.h"

#include <algorithm>

namespace fathom {

Transformer::Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                         bool draft_features)
    : weights_(weights),
      device_(weights.memory->device()),
      memory_(config, draft_features, device_),
      block_(config, ops, device_),
      batch_memory_(device_) {}

const Activations& Transformer::step(const StepBatch& batch, std::span<const LayerCache> layers) {
  StepSpan span(block_.recorder(), batch.prefill_tokens, batch.ids.size[0] - batch.prefill_tokens);
  if (!run_recorded(batch, layers)) run(batch_memory_.place(batch), layers);
  result_ = block_.act;
  if (!device_.shares_host_memory()) fetch_logits(batch.logit_rows.size[0]);
  return result_;
}

void Transformer::run(const StepBatch& batch, std::span<const LayerCache> layers) {
  begin(batch);
  embed(batch);
  run_blocks(batch, layers, 0, config().num_layers);
  if (batch.logit_rows.size[0] > 0) head(batch);
}

/// False when this step is none to be recorded. The first step of a size runs op by op, which also makes all scratch
/// memory, and is then recorded.
bool Transformer::run_recorded(const StepBatch& batch, std::span<const LayerCache> layers) {
  if (device_.shares_host_memory() || !use_graphs_ || block_.recorder()) return false;
  const auto shape = decode_shape(batch);
  if (!shape) return false;
  const StepBatch& placed = batch_memory_.place(batch, *shape);
  const auto same = [&](const Recorded& r) { return r.shape == *shape && r.layers == layers.data(); };
  const auto now = [&] {
    return std::array<int64_t, 3>{memory_.generation(), block_.workspace_generation(), batch_memory_.generation()};
  };
  if (generation_ == now()) {
    const auto at = std::find_if(recorded_.begin(), recorded_.end(), same);
    if (at != recorded_.end()) {
      begin(placed);
      at->graph->replay();
      return true;
    }
  }
  run(placed, layers);
  if (generation_ != now()) recorded_.clear(), generation_ = now();  // they point to memory that is gone
  auto graph = device_.capture([&] { run(placed, layers); });
  if (graph) recorded_.push_back({*shape, layers.data(), std::move(graph)});
  return true;
}

void Transformer::prepare(int64_t tokens, int64_t rows, int64_t sequences, int64_t context,
                          std::span<const LayerCache> layers) {
  if (device_.shares_host_memory() || block_.recorder()) return;
  IdleBatch largest(config(), tokens, rows, context);
  step(largest.batch, layers);
  const bool record = use_graphs_;
  for (const bool recording :
       {false, true}) {  // first all scratch memory, which some ops want more of for fewer tokens
    use_graphs_ = recording;
    for (const BatchShape& shape : decode_shapes(sequences, context)) {
      IdleBatch idle(config(), shape.tokens, shape.tokens, context);
      idle.batch.pages.size[1] = shape.pages, idle.batch.index128.size[1] = shape.entries128;
      step(idle.batch, layers);
    }
    if (!record) break;
  }
  use_graphs_ = record;
}

void Transformer::fetch_logits(int64_t rows) {
  const int64_t vocabulary = config().vocab_size;
  const auto bytes = static_cast<size_t>(rows * vocabulary) * sizeof(float);
  if (bytes > logits_.size()) {
    logits_ = ops::DeviceBuffer();
    logits_ = ops::DeviceBuffer(device_, bytes, ops::DeviceBuffer::Kind::host);
  }
  result_.logits = View<float, 2>(reinterpret_cast<float*>(logits_.data()), rows, vocabulary);
  device_.download(logits_.data(), block_.act.logits.data, bytes);
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
    block_.moe(batch.ids, block.moe);
    finish = true;
  }
  if (finish) {
    block_.mix(nullptr, true);
    keep_features(to - 1);
  }
}

void Transformer::attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const Activations& a = block_.act;
  block_.project_inputs(block.attn);
  block_.write_window(block, batch.position, batch.window_slot, cache.window, cache.format);
  if (block.ratio > 0) block_.compress(batch, block, cache);
  if (block.ratio == 4) block_.select(batch, block, cache);
  ops::RowSet extra;
  if (block.ratio == 4) extra = {cache.entries, a.selected, a.selected_length};
  if (block.ratio == 128) extra = {cache.entries, batch.index128, batch.length128};
  block_.attend(block, batch.position, {cache.window, batch.window_index, batch.window_length}, extra, cache.format);
  block_.project_output(block.attn);
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
