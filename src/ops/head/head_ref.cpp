#include "base/threads.h"
#include "ops/exact.h"
#include "ops/head/head.h"

namespace fathom::ops {

void head_ref(const HeadArgs& a, const Launch&) {
  const int64_t streams = a.streams.size[1], d = a.streams.size[2];
  std::vector<float> f(static_cast<size_t>(streams * d)), pre(static_cast<size_t>(streams));
  for (int64_t r = 0; r < a.rows.size[0]; ++r) {
    for (int64_t k = 0; k < streams; ++k)
      for (int64_t i = 0; i < d; ++i) f[static_cast<size_t>(k * d + i)] = to_float(a.streams(a.rows(r), k, i));
    exact::stream_mixes(f, a.fn, a.rms_eps, pre.data());
    for (int64_t j = 0; j < streams; ++j)
      pre[static_cast<size_t>(j)] = exact::sigmoid(pre[static_cast<size_t>(j)] * a.scale(0) + a.base(j)) + a.hc_eps;
    auto h = exact::mix_streams(f, pre.data(), streams);
    for (int64_t i = 0; i < d; ++i) a.hidden(r, i) = to_bf16(h[static_cast<size_t>(i)]);
    exact::rmsnorm(h, a.norm, a.rms_eps);
    for (int64_t i = 0; i < d; ++i) a.normed(r, i) = to_bf16(h[static_cast<size_t>(i)]);
    parallel_for(a.weight.size[0], 64, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        double sum = 0;
        for (int64_t i = 0; i < d; ++i) sum += double{h[static_cast<size_t>(i)]} * double{to_float(a.weight(v, i))};
        a.logits(r, v) = static_cast<float>(sum);
      }
    });
  }
}

}  // namespace fathom::ops
