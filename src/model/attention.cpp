// The attention half of a block: projections, cache writes, selection, attention core, output. Spec 2.3 to 2.5.
#include <cmath>

#include "model/cost.h"
#include "model/transformer.h"

namespace fathom {

using cost::bytes_of;

namespace {

int64_t rows_seen(View<const int32_t, 1> length) {
  int64_t sum = 0;
  for (int64_t t = 0; t < length.size[0]; ++t) sum += length(t);
  return sum;
}

/// The first n columns of each row.
template <typename T>
View<T, 2> columns(View<T, 2> v, int64_t n) {
  v.size[1] = n;
  return v;
}

template <typename T>
View<T, 2> flat(const View<T, 3>& v) {
  return View<T, 2>(v.data, v.size[0], v.size[1] * v.size[2]);
}

}  // namespace

void Transformer::attention(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const AttentionWeights& w = block.attn;
  const int64_t tokens = act_.x.size[0], d = config_.hidden_size;

  ops::LinearFp8Args in;
  in.x = act_.xq.codes, in.x_scale = act_.xq.scale;
  in.part[in.parts++] = {w.wq_a, act_.latent};
  in.part[in.parts++] = {w.wkv, act_.kv};
  run(ops_.linear_fp8, "linear_fp8", in, bytes_of(w.wq_a) + bytes_of(w.wkv),
      2 * tokens * (w.wq_a.codes.count() + w.wkv.codes.count()), {tokens, d, config_.q_lora_rank + config_.head_dim});

  project_queries(block);

  const ops::WindowWriteArgs write{act_.kv,
                                   w.kv_norm,
                                   static_cast<float>(config_.rms_eps),
                                   batch.position,
                                   frequencies(block.ratio),
                                   batch.window_slot,
                                   cache.window,
                                   cache.format};
  run(ops_.window_write, "window_write", write, bytes_of(act_.kv) + tokens * ops::page_bytes(cache.format, 1), 0,
      {tokens});

  if (block.ratio > 0) compress(batch, block, cache);
  if (block.ratio == 4) select(batch, block, cache);
  attend(batch, block, cache);

  ops::OutputProjectArgs out;
  out.o = act_.o, out.groups = config_.o_groups, out.wo_a = w.wo_a;
  out.z = act_.z, out.z_codes = act_.zq.codes, out.z_scale = act_.zq.scale;
  run(ops_.output_project, "output_project", out, bytes_of(w.wo_a) + bytes_of(act_.o),
      2 * tokens * w.wo_a.codes.count(), {tokens, w.wo_a.codes.size[1], w.wo_a.codes.size[0]});

  ops::LinearFp8Args last;
  last.x = act_.zq.codes, last.x_scale = act_.zq.scale;
  last.part[last.parts++] = {w.wo_b, act_.y};
  run(ops_.linear_fp8, "linear_fp8", last, bytes_of(w.wo_b), 2 * tokens * w.wo_b.codes.count(),
      {tokens, w.wo_b.codes.size[1], w.wo_b.codes.size[0]});
}

void Transformer::project_queries(const BlockWeights& block) {
  const AttentionWeights& w = block.attn;
  const int64_t tokens = act_.x.size[0];
  const float eps = static_cast<float>(config_.rms_eps);

  const ops::QuantizeArgs latent{act_.latent, w.q_norm, eps, act_.latent_q.codes, act_.latent_q.scale};
  run(ops_.quantize, "quantize", latent, bytes_of(act_.latent), 0, {tokens, config_.q_lora_rank});

  ops::LinearFp8Args up;
  up.x = act_.latent_q.codes, up.x_scale = act_.latent_q.scale;
  up.part[up.parts++] = {w.wq_b, flat(act_.q)};
  int64_t bytes = bytes_of(w.wq_b), rows = w.wq_b.codes.size[0];
  if (w.indexer) {
    up.part[up.parts++] = {w.indexer->wq_b, flat(act_.index_q)};
    bytes += bytes_of(w.indexer->wq_b), rows += w.indexer->wq_b.codes.size[0];
  }
  run(ops_.linear_fp8, "linear_fp8", up, bytes, 2 * tokens * rows * config_.q_lora_rank,
      {tokens, config_.q_lora_rank, rows});
}

void Transformer::compress(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const CompressorWeights& main = *block.attn.compressor;
  const int64_t tokens = act_.x.size[0], d = config_.hidden_size;
  const int64_t width = main.wkv.size[0];  // 1024 for ratio 4, 512 for ratio 128

  // Dense rows of the width in use, whatever the scratch memory was sized for.
  const View<float, 2> k(act_.k.data, tokens, width), g(act_.g.data, tokens, width);
  ops::LinearF32Args project;
  project.x = act_.x;
  project.part[project.parts++] = {main.wkv, k};
  project.part[project.parts++] = {main.wgate, g};
  int64_t bytes = bytes_of(main.wkv) + bytes_of(main.wgate);
  if (block.attn.indexer) {
    const CompressorWeights& index = block.attn.indexer->compressor;
    project.part[project.parts++] = {index.wkv, act_.index_k};
    project.part[project.parts++] = {index.wgate, act_.index_g};
    bytes += bytes_of(index.wkv) + bytes_of(index.wgate);
  }
  run(ops_.linear_f32, "linear_f32", project, bytes, tokens * bytes, {tokens, d, bytes / 2 / d});

  ops::CompressArgs c;
  c.ratio = block.ratio;
  c.k = k, c.g = g, c.ape = main.ape, c.norm = main.norm;
  c.rms_eps = static_cast<float>(config_.rms_eps);
  c.rope_freq = frequencies(block.ratio);
  c.segments = batch.segments;
  c.entries = block.ratio == 4 ? batch.entries4 : batch.entries128;
  c.state_k = cache.state_k, c.state_g = cache.state_g;
  c.pool = cache.entries, c.format = cache.format;
  const auto amount = [&](const ops::CompressArgs& a) {
    return 2 * a.entries.size[0] * a.ratio * a.k.size[1] * 4 + 2 * bytes_of(a.k);
  };
  run(ops_.compress, "compress", c, amount(c), 0, {tokens, c.ratio, c.entries.size[0]});
  if (!block.attn.indexer) return;

  const CompressorWeights& index = block.attn.indexer->compressor;
  c.k = act_.index_k, c.g = act_.index_g, c.ape = index.ape, c.norm = index.norm;
  c.state_k = cache.index_state_k, c.state_g = cache.index_state_g;
  c.index = true, c.index_pool = cache.index;
  run(ops_.compress, "compress", c, amount(c), 0, {tokens, c.ratio, c.entries.size[0]});
}

void Transformer::select(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const IndexerWeights& w = *block.attn.indexer;
  const int64_t tokens = act_.x.size[0];

  const ops::IndexQueryArgs query{act_.index_q, batch.position, frequencies(block.ratio), act_.index_codes,
                                  act_.index_scale};
  run(ops_.index_query, "index_query", query, bytes_of(act_.index_q), 0, {tokens, config_.index_heads});

  const double factor = std::pow(config_.index_head_dim, -0.5) * std::pow(config_.index_heads, -0.5);
  const ops::LinearBf16Args weight{act_.x, w.weights_proj, static_cast<float>(factor), act_.index_weight};
  run(ops_.linear_bf16, "linear_bf16", weight, bytes_of(w.weights_proj), 2 * tokens * w.weights_proj.count(),
      {tokens, config_.hidden_size, config_.index_heads});

  ops::IndexSelectArgs s;
  s.q = act_.index_codes, s.q_scale = act_.index_scale, s.head_weight = act_.index_weight;
  s.keys = cache.index, s.pages = batch.pages, s.sequence = batch.sequence, s.visible = batch.visible4;
  s.topk = config_.index_topk;
  s.index = act_.selected, s.length = act_.selected_length;
  const int64_t keys = recorder_ ? rows_seen(batch.visible4) : 0;
  run(ops_.index_select, "index_select", s, keys * (ops::kIndexCodeBytes + ops::kIndexScaleBytes),
      2 * keys * config_.index_heads * ops::kIndexDim, {tokens, config_.index_heads});
}

void Transformer::attend(const StepBatch& batch, const BlockWeights& block, const LayerCache& cache) {
  const int64_t tokens = act_.x.size[0], heads = config_.num_heads;
  const ops::QueryArgs query{act_.q, batch.position, frequencies(block.ratio), static_cast<float>(config_.rms_eps),
                             true};
  run(ops_.query, "query", query, 2 * bytes_of(act_.q), 0, {tokens, heads});

  ops::SparseAttentionArgs a;
  a.q = act_.q, a.format = cache.format;
  a.window = {cache.window, batch.window_index, batch.window_length};
  if (block.ratio == 4) a.extra = {cache.entries, act_.selected, act_.selected_length};
  if (block.ratio == 128) a.extra = {cache.entries, batch.index128, batch.length128};
  a.sink = block.attn.sink;
  a.scale = static_cast<float>(std::pow(config_.head_dim, -0.5));
  a.position = batch.position, a.rope_freq = frequencies(block.ratio);
  a.out = act_.o;
  int64_t rows = 0;
  if (recorder_) rows = rows_seen(batch.window_length) + (a.extra.length.data ? rows_seen(a.extra.length) : 0);
  run(ops_.sparse_attention, "sparse_attention", a, rows * ops::page_bytes(cache.format, 1) + 2 * bytes_of(act_.q),
      4 * rows * heads * config_.head_dim, {tokens, heads, rows});
}

}  // namespace fathom
