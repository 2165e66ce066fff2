#include <limits>

#include "base/threads.h"
#include "ops/exact_rows.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops {
namespace {

/// Appends the rows that token t sees in one pool, 512 fp32 values each.
void gather(const RowSet& set, RowFormat format, int64_t t, std::vector<float>& rows) {
  if (!set.index.data) return;
  const int64_t count = set.length.data ? set.length(t) : set.index.size[1];
  for (int64_t i = 0; i < count; ++i) {
    if (set.index(t, i) < 0) continue;
    rows.resize(rows.size() + kHeadDim);
    exact::read_kv_row(set.pool, format, set.index(t, i), rows.data() + rows.size() - kHeadDim);
  }
}

void attend(const SparseAttentionArgs& a, int64_t t, int64_t h, const std::vector<float>& rows) {
  const size_t count = rows.size() / kHeadDim;
  auto q = exact::widen(a.q[t][h]);
  std::vector<float> p(count), o(kHeadDim, 0.0f);
  float top = -std::numeric_limits<float>::infinity();
  for (size_t r = 0; r < count; ++r) {
    double dot = 0;
    for (size_t i = 0; i < kHeadDim; ++i) dot += double{q[i]} * double{rows[r * kHeadDim + i]};
    p[r] = static_cast<float>(dot) * a.scale;
    top = std::max(top, p[r]);
  }
  double sum = 0;
  for (float& v : p) v = exact::exp(v - top), sum += v;
  if (count > 0) {
    const float sink = a.sink.data ? exact::exp(a.sink(h) - top) : 0.0f;
    const float den = static_cast<float>(sum) + sink;
    for (size_t i = 0; i < kHeadDim; ++i) {
      double total = 0;
      for (size_t r = 0; r < count; ++r) total += double{round_bf16(p[r])} * double{rows[r * kHeadDim + i]};
      o[i] = round_bf16(static_cast<float>(total) / den);
    }
  }
  if (a.lse.data)
    a.lse(t, h) = count ? top + std::log(static_cast<float>(sum)) : -std::numeric_limits<float>::infinity();
  if (a.position.data) exact::rope(std::span(o).last(kRopeDim), a.position(t), a.rope_freq, true);
  if (a.out.data)
    for (size_t i = 0; i < kHeadDim; ++i) a.out(t, h, i) = to_bf16(o[i]);
  if (a.out_codes.data) exact::act_quant(o, &a.out_codes(t, h, 0), &a.out_scale(t, h, 0));
}

}  // namespace

void sparse_attention_ref(const SparseAttentionArgs& a, const Launch&) {
  parallel_for(a.q.size[0], 1, [&](int64_t t, int64_t) {
    std::vector<float> rows;
    gather(a.window, a.format, t, rows);
    gather(a.extra, a.format, t, rows);
    for (int64_t h = 0; h < a.q.size[1]; ++h) attend(a, t, h, rows);
  });
}

}  // namespace fathom::ops
