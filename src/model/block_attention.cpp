// The attention half of a block: projections, cache writes, selection, attention core, output. Spec 2.3 to 2.5.
#include <cmath>

#include "model/block_ops.h"
#include "model/cost.h"

namespace fathom {

using cost::bytes_of;

namespace {

int64_t rows_seen(View<const int32_t, 1> length) {
  int64_t sum = 0;
  for (int64_t t = 0; t < length.size[0]; ++t) sum += length(t);
  return sum;
}

template <typename T>
View<T, 2> flat(const View<T, 3>& v) {
  return View<T, 2>(v.data, v.size[0], v.size[1] * v.size[2]);
}

struct Amount {
  int64_t bytes = 0, rows = 0;
};
Amount amount_of(const ops::LinearFp8Args& a) {
  Amount n;
  for (int32_t i = 0; i < a.parts; ++i) n.bytes += bytes_of(a.part[i].w), n.rows += a.part[i].w.codes.size[0];
  return n;
}
int64_t amount_of(const ops::CompressArgs& a) {
  return 2 * a.entries.size[0] * a.ratio * a.k.size[1] * 4 + 2 * bytes_of(a.k);
}
int64_t amount_of(const ops::CompressBothArgs& a) {
  return amount_of(a.main) + (a.index.k.data ? amount_of(a.index) : 0);
}

/// Dense rows of the width in use (1024 for ratio 4, 512 for ratio 128), whatever the scratch memory was sized for.
View<float, 2> compressor_rows(const View<float, 2>& memory, const AttentionWeights& w) {
  return View<float, 2>(memory.data, memory.size[0], w.compressor->wkv.size[0]);
}

}  // namespace

ops::LinearFp8Args BlockOps::latents_of(const AttentionWeights& w) const {
  ops::LinearFp8Args in;
  in.x = act.xq.codes, in.x_scale = act.xq.scale;
  in.part[in.parts++] = {w.wq_a, act.latent};
  in.part[in.parts++] = {w.wkv, act.kv};
  return in;
}

ops::LinearF32Args BlockOps::compressed_of(const AttentionWeights& w) const {
  ops::LinearF32Args in;
  in.x = act.x;
  in.part[in.parts++] = {w.compressor->wkv, compressor_rows(act.k, w)};
  in.part[in.parts++] = {w.compressor->wgate, compressor_rows(act.g, w)};
  if (w.indexer) {
    in.part[in.parts++] = {w.indexer->compressor.wkv, act.index_k};
    in.part[in.parts++] = {w.indexer->compressor.wgate, act.index_g};
  }
  return in;
}

ops::LinearBf16Args BlockOps::index_weights_of(const IndexerWeights& w) const {
  const double factor = std::pow(config_.index_head_dim, -0.5) * std::pow(config_.index_heads, -0.5);
  return {act.x, w.weights_proj, static_cast<float>(factor), act.index_weight};
}

void BlockOps::project_latents(const AttentionWeights& w) {
  const int64_t tokens = act.x.size[0], d = config_.hidden_size;
  run(ops_.linear_fp8, "linear_fp8", latents_of(w), bytes_of(w.wq_a) + bytes_of(w.wkv),
      2 * tokens * (w.wq_a.codes.count() + w.wkv.codes.count()), {tokens, d, config_.q_lora_rank + config_.head_dim});
}

ops::LinearFp8Args BlockOps::queries_of(const AttentionWeights& w) const {
  ops::LinearFp8Args up;
  up.x = act.latent_q.codes, up.x_scale = act.latent_q.scale;
  up.part[up.parts++] = {w.wq_b, flat(act.q)};
  if (w.indexer) up.part[up.parts++] = {w.indexer->wq_b, flat(act.index_q)};
  return up;
}

bool BlockOps::project_together(const AttentionWeights& w) {
  if (!ops_.input_products || !w.compressor) return false;
  ops::InputProductsArgs a{latents_of(w), compressed_of(w), {}};
  int64_t bytes = bytes_of(w.wq_a) + bytes_of(w.wkv), rows = a.latents.part[0].w.codes.size[0] + config_.head_dim;
  for (int32_t i = 0; i < a.compressor.parts; ++i) {
    const auto& weight = a.compressor.part[i].w;
    bytes += bytes_of(weight), rows += weight.size[0];
  }
  if (w.indexer) {
    a.weights = index_weights_of(*w.indexer);
    bytes += bytes_of(a.weights.w), rows += a.weights.w.size[0];
  }
  if (!ops_.input_products->can_run(a, device_.info())) return false;
  const int64_t tokens = act.x.size[0], d = config_.hidden_size;
  run(ops_.input_products, "input_products", a, bytes, 2 * tokens * d * rows, {tokens, d, rows});
  return true;
}

void BlockOps::project_queries(const AttentionWeights& w) {
  const int64_t tokens = act.x.size[0];
  quantize(act.latent, w.q_norm, act.latent_q);

  const ops::LinearFp8Args up = queries_of(w);
  const auto [bytes, rows] = amount_of(up);
  run(ops_.linear_fp8, "linear_fp8", up, bytes, 2 * tokens * rows * config_.q_lora_rank,
      {tokens, config_.q_lora_rank, rows});
}

bool BlockOps::project_queries_and_compress(const StepBatch& batch, const BlockWeights& block,
                                            const LayerCache& cache) {
  if (!ops_.query_products || !block.attn.compressor) return false;
  const ops::CompressBothArgs both = compressions_of(batch, block, cache);
  const ops::QueryProductsArgs a{queries_of(block.attn), both.main, both.index};
  if (!ops_.query_products->can_run(a, device_.info())) return false;
  quantize(act.latent, block.attn.q_norm, act.latent_q);
  const auto [bytes, rows] = amount_of(a.queries);
  const int64_t tokens = act.x.size[0];
  run(ops_.query_products, "query_products", a, bytes + amount_of(both), 2 * tokens * rows * config_.q_lora_rank,
      {tokens, config_.q_lora_rank, rows});
  return true;
}

void BlockOps::write_window(const BlockWeights& block, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                            const ops::KvPool& pool, ops::RowFormat format) {
  const ops::WindowWriteArgs write{
      act.kv, block.attn.kv_norm, static_cast<float>(config_.rms_eps), position, frequencies(block.ratio), slot, pool,
      format};
  const int64_t tokens = position.size[0];
  run(ops_.window_write, "window_write", write, bytes_of(act.kv) + tokens * ops::page_bytes(format, 1), 0, {tokens});
}

void BlockOps::attention_inputs(const BlockWeights& block, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                                const ops::KvPool& pool, ops::RowFormat format) {
  const View<const float, 1> turns = frequencies(block.ratio);
  const auto eps = static_cast<float>(config_.rms_eps);
  ops::AttentionInputsArgs a;
  a.query = {act.q, position, turns, eps, true};
  a.window = {act.kv, block.attn.kv_norm, eps, position, turns, slot, pool, format};
  int64_t index_bytes = 0;
  if (block.ratio == 4) {
    a.index = {act.index_q, position, turns, act.index_codes, act.index_scale};
    index_bytes = bytes_of(act.index_q);
  }
  const int64_t tokens = position.size[0], heads = act.q.size[1];
  if (ops_.attention_inputs && ops_.attention_inputs->can_run(a, device_.info())) {
    const int64_t rows = bytes_of(act.kv) + tokens * ops::page_bytes(format, 1);
    return run(ops_.attention_inputs, "attention_inputs", a, 2 * bytes_of(act.q) + index_bytes + rows, 0,
               {tokens, heads});
  }
  write_window(block, position, slot, pool, format);
  run(ops_.query, "query", a.query, 2 * bytes_of(act.q), 0, {tokens, heads});
  if (block.ratio == 4) run(ops_.index_query, "index_query", a.index, index_bytes, 0, {tokens, config_.index_heads});
}

void BlockOps::project_compressor(const AttentionWeights& w) {
  const int64_t tokens = act.x.size[0], d = config_.hidden_size;
  const ops::LinearF32Args project = compressed_of(w);
  int64_t bytes = 0;
  for (int32_t i = 0; i < project.parts; ++i) bytes += bytes_of(project.part[i].w);
  run(ops_.linear_f32, "linear_f32", project, bytes, tokens * bytes, {tokens, d, bytes / 2 / d});
}

ops::CompressBothArgs BlockOps::compressions_of(const StepBatch& batch, const BlockWeights& block,
                                                const LayerCache& cache) const {
  const CompressorWeights& main = *block.attn.compressor;
  ops::CompressBothArgs both;
  ops::CompressArgs& c = both.main;
  c.ratio = block.ratio;
  c.k = compressor_rows(act.k, block.attn), c.g = compressor_rows(act.g, block.attn);
  c.ape = main.ape, c.norm = main.norm;
  c.rms_eps = static_cast<float>(config_.rms_eps);
  c.rope_freq = frequencies(block.ratio);
  c.segments = batch.segments;
  c.entries = block.ratio == 4 ? batch.entries4 : batch.entries128;
  c.state_k = cache.state_k, c.state_g = cache.state_g;
  c.pool = cache.entries, c.format = cache.format;
  if (!block.attn.indexer) return both;

  const CompressorWeights& index = block.attn.indexer->compressor;
  ops::CompressArgs& i = both.index = c;
  i.k = act.index_k, i.g = act.index_g, i.ape = index.ape, i.norm = index.norm;
  i.state_k = cache.index_state_k, i.state_g = cache.index_state_g;
  i.index = true, i.index_pool = cache.index;
  return both;
}

void BlockOps::compress(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const ops::CompressBothArgs both = compressions_of(batch, block, cache);
  const ops::CompressArgs &c = both.main, &i = both.index;
  const std::array<int64_t, 4> shape = {act.x.size[0], c.ratio, c.entries.size[0]};
  if (!block.attn.indexer) return run(ops_.compress, "compress", c, amount_of(c), 0, shape);
  if (ops_.compress_both && ops_.compress_both->can_run(both, device_.info()))
    return run(ops_.compress_both, "compress", both, amount_of(both), 0, shape);
  run(ops_.compress, "compress", c, amount_of(c), 0, shape);
  run(ops_.compress, "compress", i, amount_of(i), 0, shape);
}

void BlockOps::index_weights(const IndexerWeights& w) {
  const int64_t tokens = act.x.size[0];
  run(ops_.linear_bf16, "linear_bf16", index_weights_of(w), bytes_of(w.weights_proj),
      2 * tokens * w.weights_proj.count(), {tokens, config_.hidden_size, config_.index_heads});
}

void BlockOps::select(const StepBatch& batch, const LayerCache& cache) {
  const int64_t tokens = act.x.size[0];
  ops::IndexSelectArgs s;
  s.q = act.index_codes, s.q_scale = act.index_scale, s.head_weight = act.index_weight;
  s.keys = cache.index, s.pages = batch.pages, s.sequence = batch.sequence, s.visible = batch.visible4;
  s.topk = config_.index_topk;
  s.index = act.selected, s.length = act.selected_length;
  const int64_t keys = can_count() ? rows_seen(batch.visible4) : 0;
  run(ops_.index_select, "index_select", s, keys * (ops::kIndexCodeBytes + ops::kIndexScaleBytes),
      2 * keys * config_.index_heads * ops::kIndexDim, {tokens, config_.index_heads});
}

void BlockOps::attend(const BlockWeights& block, View<const int32_t, 1> position, const ops::RowSet& window,
                      const ops::RowSet& extra, ops::RowFormat format) {
  const int64_t tokens = act.x.size[0], heads = act.q.size[1];

  ops::SparseAttentionArgs a;
  a.q = act.q, a.format = format;
  a.window = window, a.extra = extra;
  a.sink = block.attn.sink;
  a.scale = static_cast<float>(std::pow(config_.head_dim, -0.5));
  a.position = position, a.rope_freq = frequencies(block.ratio);
  a.out = act.o;
  int64_t rows = 0;
  if (can_count()) rows = rows_seen(window.length) + (extra.length.data ? rows_seen(extra.length) : 0);
  run(ops_.sparse_attention, "sparse_attention", a, rows * ops::page_bytes(format, 1) + 2 * bytes_of(act.q),
      4 * rows * heads * config_.head_dim, {tokens, heads, rows});
}

void BlockOps::project_output(const AttentionWeights& w, const MixWeights* next) {
  const int64_t tokens = act.x.size[0];
  ops::OutputProjectArgs out;
  out.o = act.o, out.groups = static_cast<int32_t>(act.z.size[1] / config_.o_lora_rank), out.wo_a = w.wo_a;
  out.z = act.z, out.z_codes = act.zq.codes, out.z_scale = act.zq.scale;
  ops::OutputProductsArgs both{out, w.wo_b, act.y, {}};
  if (ops_.output_products) offer_end(ops_.output_products, both, next);
  if (ops_.output_products && ops_.output_products->can_run(both, device_.info())) {
    const int64_t weights = w.wo_a.codes.count() + w.wo_b.codes.count();
    const cost::Cost end = end_cost(both.end);
    run(ops_.output_products, "output_products", both,
        bytes_of(w.wo_a) + bytes_of(w.wo_b) + bytes_of(act.o) + end.bytes, 2 * tokens * weights + end.flops,
        {tokens, w.wo_a.codes.size[1], w.wo_a.codes.size[0], w.wo_b.codes.size[0]});
    ended_ = both.end;
    return reduce(act.y);
  }
  run(ops_.output_project, "output_project", out, bytes_of(w.wo_a) + bytes_of(act.o), 2 * tokens * w.wo_a.codes.count(),
      {tokens, w.wo_a.codes.size[1], w.wo_a.codes.size[0]});
  linear_fp8(act.zq, w.wo_b, act.y);
  reduce(act.y);
}

}  // namespace fathom
