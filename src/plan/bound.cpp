#include "plan/bound.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace fathom::plan {
namespace {

/// ln of n over k.
double log_choose(double n, double k) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

/// Expected largest group of `drawn` of experts, drawn without replacement from `devices` groups of `size`:
/// the sum over m of P(largest > m), where P(largest <= m) is a coefficient of (sum_{j <= m} C(size, j) x^j)^devices.
double most_loaded_exactly(int drawn, int size, int devices) {
  const double all = log_choose(static_cast<double>(size) * devices, drawn);
  double expected = 0;
  for (int m = 0; m < std::min(drawn, size); ++m) {
    if (m * devices < drawn) {
      expected += 1;  // some group must have more
      continue;
    }
    // Coefficients as they are would overflow: each is divided by C(all, drawn) to the share of x^j in x^drawn.
    std::vector<double> ways(static_cast<size_t>(drawn) + 1, 0.0), next;
    ways[0] = 1;
    for (int device = 0; device < devices; ++device) {
      next.assign(ways.size(), 0.0);
      for (int have = 0; have <= drawn; ++have) {
        if (ways[static_cast<size_t>(have)] == 0) continue;
        for (int j = 0; j <= std::min(m, drawn - have); ++j)
          next[static_cast<size_t>(have + j)] +=
              ways[static_cast<size_t>(have)] * std::exp(log_choose(size, j) - all / drawn * j);
      }
      ways.swap(next);
    }
    expected += 1 - std::min(1.0, ways[static_cast<size_t>(drawn)]);
  }
  return expected;
}

/// Bytes of routed experts that the most loaded device reads a step, of `distinct` a layer.
double expert_bytes_of_device(const Model& m, const Devices& s, double distinct, double each, int layers) {
  const double on_device =
      s.split == Split::tensor ? distinct / s.count : most_loaded(distinct, m.config.num_experts, s.count);
  return layers * each * on_device;
}

/// The rate of products with FP8 or FP4 weights.
double product_rate(const Gpu& gpu) {
  return gpu.fp8 > 0 ? gpu.fp8 : gpu.bf16;
}

}  // namespace

const char* StepBound::binds() const {
  if (link_time > std::max(memory_time, matrix_time)) return "all-reduce";
  return memory_time >= matrix_time ? "bytes" : "matrix rate";
}

double distinct_experts(const Model& m, double tokens, const Routing& routing) {
  const double experts = m.config.num_experts, each = m.config.experts_per_token;
  if (routing.empty()) return experts * (1 - std::pow(1 - each / experts, tokens));
  double sum = 0;
  for (const double share : routing) sum += 1 - std::pow(1 - std::min(1.0, each * share), tokens);
  return sum;
}

double most_loaded(double distinct, int experts, int devices) {
  if (devices <= 1) return distinct;
  if (experts % devices != 0) return std::min(distinct, std::ceil(static_cast<double>(experts) / devices));
  const double low = std::floor(distinct), part = distinct - low;
  const int size = experts / devices;
  const double below = low > 0 ? most_loaded_exactly(static_cast<int>(low), size, devices) : 0;
  if (part < 1e-9) return below;
  return below + part * (most_loaded_exactly(static_cast<int>(low) + 1, size, devices) - below);
}

double all_reduce_time(const Model& m, const Devices& s, double tokens) {
  if (s.count <= 1) return 0;
  const double bytes = tokens * m.config.hidden_size * 4, n = s.count;
  const double each = s.gpu.link.all_reduce_latency + 2 * (n - 1) / n * bytes / s.gpu.link.bandwidth;
  return 2 * m.layers() * each;
}

StepBound bound(const Model& m, const Devices& s, double batch, double context, double accepted) {
  const bool drafting = accepted > 0;
  const double per_request = drafting ? 1 + m.draft.block : 1;
  StepBound b;
  b.tokens = batch * per_request;
  b.tokens_out = batch * (drafting ? accepted : 1);
  b.distinct = distinct_experts(m, b.tokens, s.routing);
  b.fixed_bytes = m.weights.fixed();
  b.expert_bytes = m.layers() * m.weights.per_expert * b.distinct;
  b.cache_bytes = batch * cache_read_bytes(m, context, s.index_row);
  double draft_on_device = 0;
  if (drafting) {
    const double met = distinct_experts(m, batch * m.draft.block, s.routing);
    const double once = m.draft.once + m.draft.each * m.draft.block;
    b.draft_bytes = once + m.draft.stages * m.draft.per_expert * met;
    draft_on_device = once / s.count + expert_bytes_of_device(m, s, met, m.draft.per_expert, m.draft.stages);
  }
  b.device_expert_bytes = expert_bytes_of_device(m, s, b.distinct, m.weights.per_expert, m.layers());
  b.device_bytes =
      m.weights.split / s.count + m.weights.replicated + b.device_expert_bytes + b.cache_bytes + draft_on_device;
  const TokenOperations each = operations(m, context);
  b.product_flops = b.tokens * each.products;
  b.attention_flops = b.tokens * (each.attention + each.index);
  b.memory_time = b.device_bytes / s.gpu.bandwidth;
  b.matrix_time = (b.product_flops / product_rate(s.gpu) + b.attention_flops / s.gpu.bf16) / s.count;
  b.link_time = all_reduce_time(m, s, b.tokens);
  return b;
}

Capacity capacity(const Model& m, const Devices& s, double context) {
  Capacity c;
  const double embedding = static_cast<double>(m.config.vocab_size) * m.config.hidden_size * 2;
  const double tables = m.weights.lookup - embedding;  // token -> expert tables are on every device
  c.weights = (m.weights.split + embedding + m.weights.routed) / s.count + m.weights.replicated + tables +
              (s.with_draft ? m.draft.resident / s.count : 0);
  c.cache = s.gpu.memory - s.reserve - c.weights;
  const double token = cache_bytes_per_token(m, s.index_row), fixed = cache_bytes_fixed(m);
  c.sequence_bytes = fixed + token * context;
  c.longest = std::max(0.0, std::floor((c.cache - fixed) / token));
  if (m.config.max_positions > 0) c.longest = std::min(c.longest, static_cast<double>(m.config.max_positions));
  c.sequences = std::max(0.0, std::floor(c.cache / c.sequence_bytes));
  return c;
}

void check_count(const Model& m, int count) {
  if (count < 1) fail("--count {}: at least one GPU", count);
  if (m.config.o_groups % count != 0)
    fail("--count {}: {} has {} output groups, which {} devices cannot share evenly", count, printable(m.name),
         m.config.o_groups, count);
}

}  // namespace fathom::plan
