#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/choose/choose.h"
#include "ops/choose/weight.h"

namespace fathom::ops {
namespace {

/// The candidates in the order in which the draw counts them, as the contract says it word by word.
std::vector<int32_t> candidates(std::span<const float> logits, const std::vector<uint64_t>& weight,
                                const RowSampling& how) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return weight[static_cast<size_t>(id)] == 0; });
  if (!how.filters()) return order;
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (how.top_k > 0 && static_cast<size_t>(how.top_k) < order.size()) order.resize(static_cast<size_t>(how.top_k));
  if (how.top_p < 1) {
    uint64_t all = 0, some = 0;
    for (const int32_t id : order) all += weight[static_cast<size_t>(id)];
    size_t keep = 0;
    while (keep < order.size() && (keep == 0 || static_cast<double>(some) < how.top_p * static_cast<double>(all)))
      some += weight[static_cast<size_t>(order[keep++])];
    order.resize(keep);
  }
  std::erase_if(order, [&](int32_t id) {
    return id != order[0] &&
           static_cast<double>(weight[static_cast<size_t>(id)]) < how.min_p * static_cast<double>(kWeightOfBest);
  });
  return order;
}

int32_t draw(std::span<const float> logits, float best, const RowSampling& how) {
  std::vector<uint64_t> weight;
  for (const float v : logits) weight.push_back(weight_beside<HostArithmetic>(v, best, how.scale));
  const std::vector<int32_t> order = candidates(logits, weight, how);
  uint64_t total = 0;
  for (const int32_t id : order) total += weight[static_cast<size_t>(id)];
  const auto place = static_cast<uint64_t>(static_cast<unsigned __int128>(how.random) * total >> 53);
  uint64_t below = 0;
  for (const int32_t id : order)
    if (below += weight[static_cast<size_t>(id)]; place < below) return id;
  return order.back();
}

}  // namespace

void choose_ref(const ChooseArgs& a, const Launch&) {
  for (int64_t r = 0; r < a.logits.size[0]; ++r) {
    const std::span<const float> row(a.logits[r].data, static_cast<size_t>(a.logits.size[1]));
    if (!std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })) {
      a.token(r) = kRowNotFinite;
      continue;
    }
    const auto best = std::max_element(row.begin(), row.end());
    const RowSampling how = a.sampling.data ? a.sampling(r) : RowSampling{};
    a.token(r) = how.scale == 0 ? static_cast<int32_t>(best - row.begin()) : draw(row, *best, how);
  }
}

}  // namespace fathom::ops
