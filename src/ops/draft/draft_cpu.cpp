#include "ops/cpu/project.h"
#include "ops/cpu/rows.h"
#include "ops/draft/draft.h"

namespace fathom::ops {

void stream_mean_ref(const StreamMeanArgs& a, const Launch&);
void stream_join_ref(const StreamJoinArgs& a, const Launch&);
void markov_ref(const MarkovArgs& a, const Launch&);

bool stream_mean_cpu_can_run(const StreamMeanArgs& a, const DeviceInfo&) {
  return a.streams.size[1] == 4 && a.streams.size[2] % 16 == 0;
}

void stream_mean_cpu(const StreamMeanArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return stream_mean_ref(a, l);
  const int64_t d = a.streams.size[2];
  cpu::split(a.streams.size[0], 1, static_cast<double>(a.streams.count()) * 2, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto x = a.streams[t];
      const bf16* parts[4] = {x[0].data, x[1].data, x[2].data, x[3].data};
      cpu::add_parts(parts, 4, d, 0.25f, a.mean[t].data);
    }
  });
}

bool stream_join_cpu_can_run(const StreamJoinArgs& a, const DeviceInfo&) {
  return a.stream.size[2] % 16 == 0;
}

void stream_join_cpu(const StreamJoinArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return stream_join_ref(a, l);
  const int64_t streams = a.stream.size[1], d = a.stream.size[2];
  cpu::split(a.rows.size[0], 1, static_cast<double>(a.streams.count()) * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t k = 0; k < streams; ++k) {
        const bf16* parts[2] = {a.token[a.rows(r)].data, a.stream[a.rows(r)][k].data};
        cpu::add_parts(parts, 2, d, 1, a.streams[r][k].data);
      }
  });
}

size_t markov_cpu_workspace(const MarkovArgs& a, const DeviceInfo&) {
  return cpu::project_workspace(a.token.size[0], a.w1.size[1]);
}

void markov_cpu(const MarkovArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return markov_ref(a, l);
  const int64_t rank = a.w1.size[1], d = a.hidden.size[1];
  const cpu::Part part{cpu::matrix(a.w2)};
  cpu::project(
      a.token.size[0], rank, std::span(&part, 1),
      [&](int64_t b, float* out) { cpu::prepare_bf16(a.w1[a.token(b)].data, rank, out); },
      [&](size_t, int64_t b, int64_t n0, int64_t n1, const float* y) {
        float* out = a.logits[b].data;
        for (int64_t n = n0; n < n1; ++n) out[n] += y[n - n0];
      },
      l.workspace,
      [&](int64_t b) {
        const bf16 *h = a.hidden[b].data, *e = a.w1[a.token(b)].data, *w = a.confidence.data;
        double sum = 0;
        for (int64_t i = 0; i < d; ++i) sum += double{to_float(h[i])} * double{to_float(w[i])};
        for (int64_t i = 0; i < rank; ++i) sum += double{to_float(e[i])} * double{to_float(w[d + i])};
        a.confidence_logit(b) = static_cast<float>(sum);
      });
}

}  // namespace fathom::ops
