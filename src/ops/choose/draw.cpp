#include "ops/choose/draw.h"

#include <algorithm>
#include <stdexcept>

#include "ops/choose/weight.h"

namespace fathom::ops {
namespace {

/// Higher logit first; equal logits: lower id first.
bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

void TokenDraw::weigh(std::span<const float> logits, float scale) {
  const float best = *std::max_element(logits.begin(), logits.end());
  weights_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) weights_[i] = weight_beside<HostArithmetic>(logits[i], best, scale);
}

/// The best candidates that the filters leave, best first, and the sum of their weights.
uint64_t TokenDraw::filter(std::span<const float> logits, const RowSampling& how) {
  ranked_.clear();
  uint64_t total = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    if (weights_[i] > 0) ranked_.emplace_back(logits[i], static_cast<int32_t>(i)), total += weights_[i];
  const auto worse = [](const auto& a, const auto& b) { return better(b, a); };
  std::make_heap(ranked_.begin(), ranked_.end(), worse);
  kept_.clear();
  const auto weight_at = [&](size_t i) { return weights_[static_cast<size_t>(kept_[i].second)]; };
  const auto too_small = [&](size_t i) {
    return static_cast<double>(weight_at(i)) < how.min_p * static_cast<double>(kWeightOfBest);
  };
  // top_p is a share of what top_k leaves, all of which must be known then.
  const size_t most = how.top_k > 0 ? static_cast<size_t>(how.top_k) : logits.size();
  const bool share_of_some = how.top_k > 0 && how.top_p < 1, share_of_all = how.top_k == 0 && how.top_p < 1;
  uint64_t sum = 0;
  while (!ranked_.empty() && kept_.size() < most) {
    if (share_of_all && !kept_.empty() && static_cast<double>(sum) >= how.top_p * static_cast<double>(total)) break;
    std::pop_heap(ranked_.begin(), ranked_.end(), worse);
    kept_.push_back(ranked_.back());
    ranked_.pop_back();
    sum += weight_at(kept_.size() - 1);
    if (!share_of_some && too_small(kept_.size() - 1)) break;
  }
  if (share_of_some) {
    const double wanted = how.top_p * static_cast<double>(sum);
    size_t keep = 0;
    for (sum = 0; keep < kept_.size() && (keep == 0 || static_cast<double>(sum) < wanted); ++keep)
      sum += weight_at(keep);
    kept_.resize(keep);
  }
  while (kept_.size() > 1 && too_small(kept_.size() - 1)) {
    sum -= weight_at(kept_.size() - 1);
    kept_.pop_back();
  }
  return sum;
}

int32_t TokenDraw::first_in_order(uint64_t random) const {
  uint64_t total = 0;
  for (const uint64_t w : weights_) total += w;
  uint64_t left = place_of(random, total);
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (left < weights_[i]) return static_cast<int32_t>(i);
    left -= weights_[i];
  }
  throw std::logic_error("TokenDraw: weights do not add up");
}

int32_t TokenDraw::operator()(std::span<const float> logits, const RowSampling& how) {
  weigh(logits, how.scale);
  if (!how.filters()) return first_in_order(how.random);
  uint64_t left = place_of(how.random, filter(logits, how));
  for (const auto& [logit, id] : kept_) {
    const uint64_t weight = weights_[static_cast<size_t>(id)];
    if (left < weight) return id;
    left -= weight;
  }
  return kept_.back().second;
}

}  // namespace fathom::ops
