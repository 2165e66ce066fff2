#include "model/activations.h"

#include "model/layout.h"

namespace fathom {
namespace {

Activations lay_out(Layout& at, const ModelConfig& c, int ranks, int64_t t, int64_t rows, bool features) {
  const int64_t d = c.hidden_size, heads = c.num_heads / ranks, index_heads = c.index_heads,
                z = int64_t{c.o_groups} * c.o_lora_rank / ranks;
  Activations a;
  a.streams = at.take<bf16>(t, c.hc_streams, d);
  a.post = at.take<float>(t, c.hc_streams);
  a.comb = at.take<float>(t, c.hc_streams, c.hc_streams);
  a.x = at.take<bf16>(t, d);
  a.xq = at.quantized(t, d);
  a.y = at.take<bf16>(t, d);
  a.latent = at.take<bf16>(t, c.q_lora_rank);
  a.latent_q = at.quantized(t, c.q_lora_rank);
  a.q = at.take<bf16>(t, heads, c.head_dim);
  a.o = at.take<bf16>(t, heads, c.head_dim);
  a.kv = at.take<bf16>(t, c.head_dim);
  a.k = at.take<float>(t, 2 * c.head_dim);
  a.g = at.take<float>(t, 2 * c.head_dim);
  a.index_k = at.take<float>(t, 2 * c.index_head_dim);
  a.index_g = at.take<float>(t, 2 * c.index_head_dim);
  a.index_q = at.take<bf16>(t, index_heads, c.index_head_dim);
  a.index_codes = at.take<e2m1x2>(t, index_heads, c.index_head_dim / 2);
  a.index_scale = at.take<e8m0>(t, index_heads, c.index_head_dim / 32);
  a.index_weight = at.take<bf16>(t, index_heads);
  a.selected = at.take<int32_t>(t, c.index_topk);
  a.selected_length = at.take<int32_t>(t);
  a.z = at.take<bf16>(t, z);
  a.zq = at.quantized(t, z);
  a.scores = at.take<float>(t, c.num_experts);
  a.expert = at.take<int32_t>(t, c.experts_per_token);
  a.weight = at.take<float>(t, c.experts_per_token);
  if (ranks > 1) {
    a.part = at.take<float>(t, d);
    a.logits_part = at.take<float>(rows, c.vocab_size / ranks);
  }
  a.hidden = at.take<bf16>(rows, d);
  a.normed = at.take<bf16>(rows, d);
  a.logits = at.take<float>(rows, c.vocab_size);
  a.token = at.take<int32_t>(rows);
  if (features && c.dspark) a.features = at.take<bf16>(t, static_cast<int64_t>(c.dspark->target_layers.size()) * d);
  return a;
}

}  // namespace

Activations ActivationMemory::get(int64_t tokens, int64_t rows) {
  Layout count(nullptr);
  lay_out(count, config_, shard_.size, tokens, rows, features_);
  if (count.used() > memory_.size()) {
    memory_ = {};  // frees the old memory before the new one is taken
    memory_ = ops::DeviceBuffer(device_, count.used());
    ++generation_;
  }
  Layout place(memory_.data());
  return lay_out(place, config_, shard_.size, tokens, rows, features_);
}

}  // namespace fathom
