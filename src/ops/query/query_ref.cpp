#include "ops/exact.h"
#include "ops/kv_rows.h"
#include "ops/query/query.h"

namespace fathom::ops {
namespace {

void head_norm(std::span<float> q, float eps, bool bf16_steps) {
  float factor;
  if (bf16_steps) {
    double sum = 0;
    for (float v : q) sum += double{round_bf16(v * v)};
    const float mean = round_bf16(static_cast<float>(sum / static_cast<double>(q.size())));
    factor = round_bf16(1.0f / std::sqrt(round_bf16(mean + eps)));
  } else {
    factor = 1.0f / std::sqrt(exact::mean_square(q) + eps);
  }
  for (float& v : q) v = round_bf16(v * factor);
}

}  // namespace

void query_ref(const QueryArgs& a, const Launch&) {
  for (int64_t t = 0; t < a.q.size[0]; ++t) {
    for (int64_t h = 0; h < a.q.size[1]; ++h) {
      auto q = exact::widen(View<const bf16, 3>(a.q)[t][h]);
      head_norm(q, a.rms_eps, a.bf16_steps);
      exact::rope(std::span(q).last(kRopeDim), a.position(t), a.rope_freq);
      for (size_t i = 0; i < q.size(); ++i) a.q(t, h, i) = to_bf16(q[i]);
    }
  }
}

}  // namespace fathom::ops
