#include "model/dspark.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/cost.h"

namespace fathom {

using cost::bytes_of;

Dspark::Dspark(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops)
    : draft_(*config.dspark),
      weights_(*weights.dspark),
      embed_(weights.embed),
      head_(weights.head),
      memory_(config, false, weights.memory->device()),
      block_(config, ops, weights.memory->device()),
      rows_(static_cast<size_t>(ops::page_bytes(ops::RowFormat::v4, draft_.block_size))) {
  if (!block_.device().shares_host_memory()) fail("the draft runs on the processor only");
  const auto n = static_cast<size_t>(draft_.block_size);
  block_slot_.resize(n);
  std::iota(block_slot_.begin(), block_slot_.end(), 0);
  for (size_t i = 0; i < n; ++i) block_index_.insert(block_index_.end(), block_slot_.begin(), block_slot_.end());
  block_length_.assign(n, draft_.block_size);
}

void Dspark::push(View<const bf16, 2> features, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                  std::span<const LayerCache> stages) {
  const int64_t tokens = features.size[0], width = features.size[1];
  block_.act = memory_.get(tokens, 0);
  Activations& act = block_.act;
  std::vector<e4m3> codes(static_cast<size_t>(tokens * width));
  std::vector<e8m0> scale(static_cast<size_t>(tokens * width / 128));
  const Quantized wide{View(codes.data(), tokens, width), View(scale.data(), tokens, width / 128)};
  block_.quantize(features, {}, wide);
  block_.linear_fp8(wide, weights_.main_proj, act.y);
  // The main norm's result is rounded to bf16 before it is quantised, as every RMSNorm is.
  block_.quantize(act.y, weights_.main_norm, act.xq);
  for (size_t i = 0; i < stages.size(); ++i) {
    const BlockWeights& w = weights_.stages[i];
    block_.linear_fp8(act.xq, w.attn.wkv, act.kv);
    block_.write_window(w, position, slot, stages[i].window, stages[i].format);
  }
}

void Dspark::stage(const BlockWeights& w, const LayerCache& cache, const ops::RowSet& window,
                   View<const int32_t, 1> ids, View<const int32_t, 1> position) {
  const int64_t n = draft_.block_size;
  const ops::KvPool own{rows_.data(), static_cast<int64_t>(rows_.size()), draft_.block_size};
  block_.project_latents(w.attn);
  block_.project_queries(w.attn);
  block_.write_window(w, position, View<const int32_t, 1>(block_slot_.data(), n), own, cache.format);
  block_.queries(w, position);
  block_.attend(
      w, position, window,
      {own, View<const int32_t, 2>(block_index_.data(), n, n), View<const int32_t, 1>(block_length_.data(), n)},
      cache.format);
  block_.project_output(w.attn);
  block_.mix(&w.ffn_mix, true);
  block_.moe(ids, w.moe);
}

Dspark::Proposal Dspark::propose(int32_t token, int32_t position, std::span<const int32_t> window_rows,
                                 std::span<const LayerCache> stages, int64_t most, const Choose& choose) {
  const int64_t n = draft_.block_size, vocab = head_.size[0];
  std::vector<int32_t> ids(static_cast<size_t>(n), draft_.noise_token_id), positions(ids.size()), index;
  ids[0] = token;
  std::iota(positions.begin(), positions.end(), position + 1);
  for (int64_t i = 0; i < n; ++i) index.insert(index.end(), window_rows.begin(), window_rows.end());
  const std::vector<int32_t> length(ids.size(), static_cast<int32_t>(window_rows.size()));
  const View<const int32_t, 1> ids_view(ids.data(), n), position_view(positions.data(), n);

  block_.act = memory_.get(n, n);
  Activations& act = block_.act;
  block_.embed(embed_, ids_view);
  for (size_t i = 0; i < stages.size(); ++i) {
    block_.mix(&weights_.stages[i].attn_mix, i > 0);
    const ops::RowSet window{stages[i].window, View<const int32_t, 2>(index.data(), n, window_rows.size()),
                             View<const int32_t, 1>(length.data(), n)};
    stage(weights_.stages[i], stages[i], window, ids_view, position_view);
  }
  block_.mix(nullptr, true);
  block_.head(weights_.head, head_, View<const int32_t, 1>(block_slot_.data(), n));

  Proposal out;
  int32_t previous = token;
  for (int64_t i = 0; i < std::min<int64_t>(most, draft_.block_size); ++i) {
    float confidence = 0;
    ops::MarkovArgs m;
    m.token = View<const int32_t, 1>(&previous, 1);
    m.w1 = weights_.markov_w1, m.w2 = weights_.markov_w2;
    m.hidden = act.hidden.rows(i, 1), m.confidence = weights_.confidence;
    m.logits = act.logits.rows(i, 1), m.confidence_logit = View<float, 1>(&confidence, 1);
    block_.run(block_.table().markov, "markov", m, bytes_of(m.w2), 2 * m.w2.count(), {1, m.w2.size[1], vocab});
    previous = choose(i, std::span<const float>(&act.logits(i, 0), static_cast<size_t>(vocab)));
    if (previous < 0) break;
    out.tokens.push_back(previous);
    out.confidence_logit.push_back(confidence);
  }
  return out;
}

}  // namespace fathom
