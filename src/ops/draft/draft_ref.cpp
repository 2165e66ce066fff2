#include "ops/draft/draft.h"
#include "ops/exact.h"

namespace fathom::ops {

void stream_mean_ref(const StreamMeanArgs& a, const Launch&) {
  const int64_t streams = a.streams.size[1];
  for (int64_t t = 0; t < a.streams.size[0]; ++t) {
    for (int64_t i = 0; i < a.streams.size[2]; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < streams; ++k) sum += to_float(a.streams(t, k, i));
      a.mean(t, i) = to_bf16(sum / static_cast<float>(streams));
    }
  }
}

void stream_join_ref(const StreamJoinArgs& a, const Launch&) {
  for (int64_t r = 0; r < a.rows.size[0]; ++r) {
    const int64_t t = a.rows(r);
    for (int64_t k = 0; k < a.stream.size[1]; ++k)
      for (int64_t i = 0; i < a.stream.size[2]; ++i)
        a.streams(r, k, i) = to_bf16(to_float(a.token(t, i)) + to_float(a.stream(t, k, i)));
  }
}

void markov_ref(const MarkovArgs& a, const Launch&) {
  const int64_t rank = a.w1.size[1], d = a.hidden.size[1];
  for (int64_t b = 0; b < a.token.size[0]; ++b) {
    const auto e = exact::widen(a.w1[a.token(b)]);
    for (int64_t v = 0; v < a.w2.size[0]; ++v) {
      double sum = 0;
      for (int64_t i = 0; i < rank; ++i) sum += double{e[static_cast<size_t>(i)]} * double{to_float(a.w2(v, i))};
      a.logits(b, v) += static_cast<float>(sum);
    }
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += double{to_float(a.hidden(b, i))} * double{to_float(a.confidence(i))};
    for (int64_t i = 0; i < rank; ++i) sum += double{e[static_cast<size_t>(i)]} * double{to_float(a.confidence(d + i))};
    a.confidence_logit(b) = static_cast<float>(sum);
  }
}

}  // namespace fathom::ops
