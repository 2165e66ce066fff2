#include "model/block_ops.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/cost.h"
#include "model/rope.h"

namespace fathom {

using cost::bytes_of;

BlockOps::BlockOps(const ModelConfig& config, const ops::OpTable& ops, ops::ComputeDevice& device)
    : config_(config), ops_(ops), device_(device) {
  std::vector<float> tables = rope_frequencies(config.rope_theta, config.rope_dim, nullptr);
  const auto compressed = rope_frequencies(config.compress_rope_theta, config.rope_dim, &config.yarn);
  tables.insert(tables.end(), compressed.begin(), compressed.end());
  frequencies_ = ops::DeviceBuffer(device, tables.size() * sizeof(float));
  device.upload(frequencies_.data(), tables.data(), frequencies_.size());
}

View<const float, 1> BlockOps::frequencies(int ratio) const {
  const int64_t count = config_.rope_dim / 2;
  return View<const float, 1>(reinterpret_cast<const float*>(frequencies_.data()) + (ratio > 0 ? count : 0), count);
}

size_t BlockOps::workspace_bytes() const {
  size_t bytes = 0;
  for (const auto& [op, buffer] : workspaces_) bytes += buffer.size();
  return bytes;
}

void* BlockOps::workspace(const void* op, size_t bytes) {
  const auto same = [op](const auto& w) { return w.first == op; };
  auto at = std::find_if(workspaces_.begin(), workspaces_.end(), same);
  if (at == workspaces_.end()) at = workspaces_.insert(at, {op, ops::DeviceBuffer()});
  if (bytes > at->second.size()) {
    at->second = ops::DeviceBuffer();  // frees the old memory before the new one is taken
    at->second = ops::DeviceBuffer(device_, bytes);
    ++generation_;
  }
  return at->second.data();
}

void no_variant(const char* op, std::string_view variant) {
  fail("operation {}: variant {} takes no such shapes on this device", op, variant);
}

void op_failed(const char* op) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    const std::string what = e.what(), name = op;
    fail("{}", what.starts_with(name + ":") ? what : "operation " + name + ": " + what);
  }
}

void BlockOps::run_collective(const char* name, int64_t bytes, std::array<int64_t, 4> shape,
                              const std::function<void()>& work) {
  if (device_.only_counts() || dry_) return;
  Span span(recorder_, name, bytes, 0, shape);
  const int64_t before = marks_ ? device_.captured() : 0;
  work();
  if (marks_) marks_->push_back({name, bytes, 0, device_.captured() - before});
  if (wait_) device_.synchronize(name);
}

template <typename T>
void BlockOps::reduce(View<T, 2> part) {
  if (act.part.empty()) return;  // the only rank
  run_collective("all_reduce", bytes_of(part), {part.size[0], part.size[1]},
                 [&] { communicator_->all_reduce(View<const T, 2>(part), act.y); });
}
template void BlockOps::reduce(View<float, 2>);
template void BlockOps::reduce(View<bf16, 2>);

void BlockOps::embed(View<const bf16, 2> table, View<const int32_t, 1> ids) {
  const ops::EmbedArgs args{table, ids, act.streams};
  run(ops_.embed, "embed", args, bytes_of(act.streams), 0, {ids.size[0], config_.hidden_size});
}

void BlockOps::mix(const MixWeights* next, bool finish) {
  ops::ResidualMixArgs a;
  a.streams = act.streams;
  const ops::HalfEnd ended = std::exchange(ended_, {});
  if (finish && ended.streams.data) {
    if (!next || next->fn.data != ended.fn.data) fail("the half was ended for another one than begins");
    a.sums = View<const float, 3>(ended.sums), finish = false;
  }
  if (finish) a.y = act.y, a.post = act.post, a.comb = act.comb;
  const int64_t tokens = act.streams.size[0], d = config_.hidden_size;
  int64_t bytes = bytes_of(act.streams) * (finish ? 2 : 1), flops = finish ? tokens * 4 * d * 10 : 0;
  if (next) {
    a.fn = next->fn, a.scale = next->scale, a.base = next->base, a.norm = next->norm;
    a.sinkhorn_iterations = config_.hc_sinkhorn_iters;
    a.hc_eps = static_cast<float>(config_.hc_eps), a.rms_eps = static_cast<float>(config_.rms_eps);
    a.next_post = act.post, a.next_comb = act.comb;
    a.x = act.x, a.x_codes = act.xq.codes, a.x_scale = act.xq.scale;
    bytes += bytes_of(act.x) + bytes_of(act.xq.codes) + (a.sums.data ? 0 : bytes_of(next->fn));
    flops += tokens * 4 * d * (a.sums.data ? 4 : 2 * ops::kMixes + 4);
  }
  run(ops_.residual_mix, "residual_mix", a, bytes, flops, {tokens, d});
}

cost::Cost BlockOps::end_cost(const ops::HalfEnd& end) const {
  if (!end.streams.data) return {};
  return {2 * bytes_of(end.streams) + bytes_of(end.fn), end.streams.count() * (10 + 2 * ops::kMixes)};
}

ops::HalfEnd BlockOps::half_end(const MixWeights* next) {
  const int64_t tokens = act.streams.size[0], slices = config_.hidden_size / ops::kSumChannels;
  // Ranks end a half when they have added their parts.
  if (!next || communicator_ || device_.info().backend != ops::Backend::cuda) return {};
  auto* sums = static_cast<float*>(
      workspace(&ended_, static_cast<size_t>(ops::kEndTokens * slices * ops::kSumPitch) * sizeof(float)));
  if (tokens > ops::kEndTokens) return {};
  return {act.streams, act.post, act.comb, next->fn, View<float, 3>(sums, tokens, slices, int64_t{ops::kSumPitch})};
}

void BlockOps::stream_mean(View<bf16, 2> mean) {
  const ops::StreamMeanArgs args{act.streams, mean};
  run(ops_.stream_mean, "stream_mean", args, bytes_of(act.streams), act.streams.count(), {act.streams.size[0]});
}

void BlockOps::quantize(View<const bf16, 2> x, View<const bf16, 1> norm, const Quantized& out) {
  const ops::QuantizeArgs args{x, norm, static_cast<float>(config_.rms_eps), out.codes, out.scale};
  run(ops_.quantize, "quantize", args, bytes_of(x), 0, {x.size[0], x.size[1]});
}

void BlockOps::linear_fp8(const Quantized& x, const ops::Fp8Weight& w, View<bf16, 2> y) {
  ops::LinearFp8Args a;
  a.x = x.codes, a.x_scale = x.scale;
  a.part[a.parts++] = {w, y};
  const int64_t tokens = x.codes.size[0];
  run(ops_.linear_fp8, "linear_fp8", a, bytes_of(w), 2 * tokens * w.codes.count(),
      {tokens, w.codes.size[1], w.codes.size[0]});
}

void BlockOps::moe(View<const int32_t, 1> ids, const MoeWeights& m, const MixWeights* next) {
  const int64_t tokens = act.x.size[0], d = config_.hidden_size;
  ops::RouteArgs r;
  r.x = act.x, r.gate = m.gate, r.bias = m.bias, r.table = m.table, r.ids = ids;
  r.route_scale = static_cast<float>(config_.route_scale);
  r.scores = act.scores, r.expert = act.expert, r.weight = act.weight;
  run(ops_.route, "route", r, bytes_of(m.gate) + bytes_of(act.x), 2 * tokens * m.gate.count(),
      {tokens, d, config_.num_experts});

  ops::ExpertsArgs e;
  e.x = act.xq.codes, e.x_scale = act.xq.scale, e.expert = act.expert, e.weight = act.weight;
  e.experts = m.count, e.first_expert = m.first;
  e.w1 = m.w1, e.w2 = m.w2, e.w3 = m.w3;
  e.shared_w1 = m.shared_w1, e.shared_w2 = m.shared_w2, e.shared_w3 = m.shared_w3;
  e.limit = static_cast<float>(config_.swiglu_limit);
  e.x_is_old = true;  // the launch before is the router's, which reads x alone
  e.y = act.y, e.sum = act.part;
  offer_end(ops_.experts, e, next);
  // Without a shared expert and with no expert of this rank chosen there is nobody to write the sum.
  if (!e.sum.empty() && !m.shared_w1.codes.data) device_.zero(e.sum.data, static_cast<size_t>(bytes_of(e.sum)));
  cost::Cost c;
  if (can_count()) {
    c = cost::experts(m.w1, m.w2, act.expert, m.first, m.count);
    c +=
        {bytes_of(m.shared_w1) + bytes_of(m.shared_w2) + bytes_of(m.shared_w3), 6 * tokens * m.shared_w1.codes.count()};
    c += {bytes_of(act.xq.codes) + bytes_of(act.y), 0};
    c += end_cost(e.end);
  }
  run(ops_.experts, "experts", e, c.bytes, c.flops, {tokens, d, m.w1.rows, config_.experts_per_token});
  ended_ = e.end;
  reduce(act.part);
}

void BlockOps::head(const HeadWeights& h, View<const bf16, 2> matrix, View<const int32_t, 1> rows) {
  ops::HeadArgs a;
  a.streams = act.streams, a.rows = rows;
  a.fn = h.fn, a.scale = h.scale, a.base = h.base, a.norm = h.norm;
  a.hc_eps = static_cast<float>(config_.hc_eps), a.rms_eps = static_cast<float>(config_.rms_eps);
  a.weight = matrix;
  a.hidden = act.hidden, a.normed = act.normed;
  a.logits = act.logits_part.empty() ? act.logits : act.logits_part;
  const int64_t count = rows.size[0];
  run(ops_.head, "head", a, bytes_of(matrix) + bytes_of(a.logits) + bytes_of(a.fn), 2 * count * matrix.count(),
      {count, config_.hidden_size, matrix.size[0]});
  if (!act.logits_part.empty())
    run_collective("all_gather", bytes_of(act.logits), {count, config_.vocab_size},
                   [&] { communicator_->all_gather(View<const float, 2>(act.logits_part), act.logits); });
}

void BlockOps::choose(View<const ops::RowSampling, 1> sampling) {
  if (sampling.size[0] == 0) sampling.data = nullptr;  // on a device empty arrays have an address too
  run(ops_.choose, "choose", ops::ChooseArgs{act.logits, sampling, act.token}, bytes_of(act.logits), 0,
      {act.logits.size[0], act.logits.size[1]});
}

}  // namespace fathom
