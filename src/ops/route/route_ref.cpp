#include <numeric>

#include "ops/exact.h"
#include "ops/route/route.h"

namespace fathom::ops {
namespace {

void choose(const RouteArgs& a, int64_t t, std::vector<int32_t>& chosen) {
  const int64_t k = a.expert.size[1];
  chosen.clear();
  if (!a.bias.data) {
    for (int64_t i = 0; i < k; ++i) chosen.push_back(a.table(a.ids(t), i));
  } else {
    chosen.resize(static_cast<size_t>(a.gate.size[0]));
    std::iota(chosen.begin(), chosen.end(), 0);
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](int32_t x, int32_t y) { return a.scores(t, x) + a.bias(x) > a.scores(t, y) + a.bias(y); });
    chosen.resize(static_cast<size_t>(k));
  }
  std::sort(chosen.begin(), chosen.end());
}

}  // namespace

void route_ref(const RouteArgs& a, const Launch&) {
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < a.x.size[0]; ++t) {
    const auto x = exact::widen(a.x[t]);
    for (int64_t e = 0; e < a.gate.size[0]; ++e) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += double{x[i]} * double{to_float(a.gate(e, i))};
      a.scores(t, e) = std::sqrt(exact::softplus(static_cast<float>(sum)));
    }
    choose(a, t, chosen);
    float sum = 0;
    for (int32_t e : chosen) sum += a.scores(t, e);
    for (size_t i = 0; i < chosen.size(); ++i) {
      a.expert(t, i) = chosen[i];
      a.weight(t, i) = a.scores(t, chosen[i]) / sum * a.route_scale;
    }
  }
}

}  // namespace fathom::ops
