#include "ops/index_select/index_select.h"

#include <numeric>

#include "base/threads.h"
#include "ops/exact_rows.h"

namespace fathom::ops {

void index_query_ref(const IndexQueryArgs& a, const Launch&) {
  for (int64_t t = 0; t < a.q.size[0]; ++t) {
    for (int64_t h = 0; h < a.q.size[1]; ++h) {
      auto q = exact::widen(a.q[t][h]);
      exact::rope(std::span(q).last(2 * static_cast<size_t>(a.rope_freq.size[0])), a.position(t), a.rope_freq);
      exact::hadamard(q);
      for (int g = 0; g < kIndexScaleBytes; ++g) {
        uint8_t* codes = &a.codes(t, h, g * kIndexGroup / 2).bits;
        a.scale(t, h, g) =
            exact::fp4_group(std::span(q).subspan(static_cast<size_t>(g * kIndexGroup), kIndexGroup), codes);
      }
    }
  }
}

namespace {

float score(const IndexSelectArgs& a, int64_t t, int64_t slot) {
  float q[kIndexDim], key[kIndexDim];
  exact::read_fp4(reinterpret_cast<const uint8_t*>(a.keys.row_codes(slot)),
                  reinterpret_cast<const uint8_t*>(a.keys.row_scales(slot)), key);
  double total = 0;
  for (int64_t h = 0; h < a.q.size[1]; ++h) {
    exact::read_fp4(&a.q(t, h, 0).bits, &a.q_scale(t, h, 0).bits, q);
    double dot = 0;
    for (int i = 0; i < kIndexDim; ++i) dot += double{q[i]} * double{key[i]};
    const float relu = std::max(round_bf16(static_cast<float>(dot)), 0.0f);
    total += double{round_bf16(relu * to_float(a.head_weight(t, h)))};
  }
  return round_bf16(static_cast<float>(total));
}

}  // namespace

void index_select_ref(const IndexSelectArgs& a, const Launch&) {
  parallel_for(a.q.size[0], 1, [&](int64_t t, int64_t) {
    const int32_t visible = a.visible(t), kept = std::min(visible, a.topk);
    const auto slot = [&](int32_t entry) {
      return a.pages(a.sequence(t), entry / a.keys.page_rows) * a.keys.page_rows + entry % a.keys.page_rows;
    };
    std::vector<int32_t> order(static_cast<size_t>(visible));
    std::iota(order.begin(), order.end(), 0);
    if (visible > a.topk) {
      std::vector<float> scores(order.size());
      for (int32_t e : order) scores[static_cast<size_t>(e)] = score(a, t, slot(e));
      std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
        return scores[static_cast<size_t>(x)] > scores[static_cast<size_t>(y)];
      });
      order.resize(static_cast<size_t>(kept));
      std::sort(order.begin(), order.end());
    }
    for (int32_t i = 0; i < a.topk; ++i) a.index(t, i) = i < kept ? slot(order[static_cast<size_t>(i)]) : -1;
    a.length(t) = kept;
  });
}

}  // namespace fathom::ops
