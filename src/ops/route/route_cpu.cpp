#include "ops/cpu/project.h"
#include "ops/cpu/scores.h"
#include "ops/route/route.h"

namespace fathom::ops {

void route_ref(const RouteArgs& a, const Launch&);

namespace {

/// Ids of the k largest s + bias, the lower id first among equals; ascending.
void choose(const float* s, const float* bias, int32_t experts, int64_t k, int32_t* chosen) {
  int64_t count = 0;  // chosen[0, count) by falling value while the list is built
  for (int32_t e = 0; e < experts; ++e) {
    const float value = s[e] + bias[e];
    const auto beats = [&](int32_t other) { return value > s[other] + bias[other]; };
    if (count == k && !beats(chosen[k - 1])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && beats(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
  std::sort(chosen, chosen + k);
}

void weigh(const RouteArgs& a, int64_t t) {
  const int64_t k = a.expert.size[1];
  const float* s = a.scores[t].data;
  int32_t* chosen = a.expert[t].data;
  if (a.bias.data) {
    choose(s, a.bias.data, static_cast<int32_t>(a.gate.size[0]), k, chosen);
  } else {
    std::copy_n(a.table[a.ids(t)].data, k, chosen);
    std::sort(chosen, chosen + k);
  }
  float sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += s[chosen[i]];
  for (int64_t i = 0; i < k; ++i) a.weight(t, i) = s[chosen[i]] / sum * a.route_scale;
}

}  // namespace

size_t route_cpu_workspace(const RouteArgs& a, const DeviceInfo&) {
  return cpu::project_workspace(a.x.size[0], a.x.size[1]);
}

void route_cpu(const RouteArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return route_ref(a, l);
  const cpu::Part part{cpu::matrix(a.gate)};
  cpu::project(
      a.x.size[0], a.x.size[1], std::span(&part, 1),
      [&](int64_t t, float* out) { cpu::prepare_bf16(a.x[t].data, a.x.size[1], out); },
      [&](size_t, int64_t t, int64_t n0, int64_t n1, const float* y) {
        cpu::gate_scores(y, n1 - n0, a.scores[t].data + n0);
      },
      l.workspace, [&](int64_t t) { weigh(a, t); });
}

}  // namespace fathom::ops
