#include "model/transformer.h"

#include "model/cost.h"
#include "model/rope.h"

namespace fathom {

using cost::bytes_of;

Transformer::Transformer(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                         bool draft_features)
    : config_(config),
      weights_(weights),
      ops_(ops),
      plain_freq_(rope_frequencies(config.rope_theta, config.rope_dim, nullptr)),
      compressed_freq_(rope_frequencies(config.compress_rope_theta, config.rope_dim, &config.yarn)),
      memory_(config, draft_features) {}

View<const float, 1> Transformer::frequencies(int ratio) const {
  const auto& table = ratio > 0 ? compressed_freq_ : plain_freq_;
  return View<const float, 1>(table.data(), table.size());
}

const Activations& Transformer::step(const StepBatch& batch, std::span<const LayerCache> layers) {
  begin(batch);
  StepSpan span(recorder_, batch.prefill_tokens, batch.ids.size[0] - batch.prefill_tokens);
  embed(batch);
  run_blocks(batch, layers, 0, config_.num_layers);
  if (batch.logit_rows.size[0] > 0) head(batch);
  return act_;
}

Activations& Transformer::begin(const StepBatch& batch) {
  act_ = memory_.get(batch.ids.size[0], batch.logit_rows.size[0]);
  return act_;
}

void Transformer::embed(const StepBatch& batch) {
  const ops::EmbedArgs args{weights_.embed, batch.ids, act_.streams};
  run(ops_.embed, "embed", args, bytes_of(act_.streams), 0, {batch.ids.size[0], config_.hidden_size});
}

void Transformer::run_blocks(const StepBatch& batch, std::span<const LayerCache> layers, int from, int to) {
  bool finish = false;  // a half is waiting for its hc_post
  for (int i = from; i < to; ++i) {
    const BlockWeights& block = weights_.blocks[static_cast<size_t>(i)];
    mix(&block.attn_mix, finish);
    if (finish) keep_features(i - 1);
    attention(batch, block, layers[static_cast<size_t>(i)]);
    mix(&block.ffn_mix, true);
    moe(batch, block.moe);
    finish = true;
  }
  if (finish) {
    mix(nullptr, true);
    keep_features(to - 1);
  }
}

void Transformer::mix(const MixWeights* next, bool finish) {
  ops::ResidualMixArgs a;
  a.streams = act_.streams;
  if (finish) a.y = act_.y, a.post = act_.post, a.comb = act_.comb;
  const int64_t tokens = act_.streams.size[0], d = config_.hidden_size;
  int64_t bytes = bytes_of(act_.streams) * (finish ? 2 : 1), flops = finish ? tokens * 4 * d * 10 : 0;
  if (next) {
    a.fn = next->fn, a.scale = next->scale, a.base = next->base, a.norm = next->norm;
    a.sinkhorn_iterations = config_.hc_sinkhorn_iters;
    a.hc_eps = static_cast<float>(config_.hc_eps), a.rms_eps = static_cast<float>(config_.rms_eps);
    a.next_post = act_.post, a.next_comb = act_.comb;
    a.x = act_.x, a.x_codes = act_.xq.codes, a.x_scale = act_.xq.scale;
    bytes += bytes_of(next->fn) + bytes_of(act_.x) + bytes_of(act_.xq.codes);
    flops += tokens * 4 * d * (2 * ops::kMixes + 4);
  }
  run(ops_.residual_mix, "residual_mix", a, bytes, flops, {tokens, d});
}

void Transformer::keep_features(int layer) {
  if (act_.features.empty()) return;
  const auto& targets = config_.dspark->target_layers;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != layer) continue;
    View<bf16, 2> mean = act_.features;  // columns of this target, strided rows
    mean.data += static_cast<int64_t>(i) * config_.hidden_size;
    mean.size[1] = config_.hidden_size;
    const ops::StreamMeanArgs args{act_.streams, mean};
    run(ops_.stream_mean, "stream_mean", args, bytes_of(act_.streams), act_.streams.count(), {act_.streams.size[0]});
  }
}

void Transformer::moe(const StepBatch& batch, const MoeWeights& m) {
  const int64_t tokens = act_.x.size[0], d = config_.hidden_size;
  ops::RouteArgs r;
  r.x = act_.x, r.gate = m.gate, r.bias = m.bias, r.table = m.table, r.ids = batch.ids;
  r.route_scale = static_cast<float>(config_.route_scale);
  r.scores = act_.scores, r.expert = act_.expert, r.weight = act_.weight;
  run(ops_.route, "route", r, bytes_of(m.gate) + bytes_of(act_.x), 2 * tokens * m.gate.count(),
      {tokens, d, config_.num_experts});

  ops::ExpertsArgs e;
  e.x = act_.xq.codes, e.x_scale = act_.xq.scale, e.expert = act_.expert, e.weight = act_.weight;
  e.experts = config_.num_experts;
  e.w1 = m.w1, e.w2 = m.w2, e.w3 = m.w3;
  e.shared_w1 = m.shared_w1, e.shared_w2 = m.shared_w2, e.shared_w3 = m.shared_w3;
  e.limit = static_cast<float>(config_.swiglu_limit);
  e.y = act_.y;
  cost::Cost c;
  if (recorder_) {
    c = cost::experts(m.w1, m.w2, act_.expert, config_.num_experts);
    c +=
        {bytes_of(m.shared_w1) + bytes_of(m.shared_w2) + bytes_of(m.shared_w3), 6 * tokens * m.shared_w1.codes.count()};
    c += {bytes_of(act_.xq.codes) + bytes_of(act_.y), 0};
  }
  run(ops_.experts, "experts", e, c.bytes, c.flops,
      {tokens, d, config_.moe_intermediate_size, config_.experts_per_token});
}

void Transformer::head(const StepBatch& batch) {
  const HeadWeights& h = weights_.head_mix;
  ops::HeadArgs a;
  a.streams = act_.streams, a.rows = batch.logit_rows;
  a.fn = h.fn, a.scale = h.scale, a.base = h.base, a.norm = h.norm;
  a.hc_eps = static_cast<float>(config_.hc_eps), a.rms_eps = static_cast<float>(config_.rms_eps);
  a.weight = weights_.head;
  a.hidden = act_.hidden, a.normed = act_.normed, a.logits = act_.logits;
  const int64_t rows = batch.logit_rows.size[0];
  run(ops_.head, "head", a, bytes_of(a.weight) + bytes_of(a.logits) + bytes_of(a.fn), 2 * rows * a.weight.count(),
      {rows, config_.hidden_size, config_.vocab_size});
}

}  // namespace fathom
