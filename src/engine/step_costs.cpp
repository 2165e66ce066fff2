#include "engine/step_costs.h"

#include <algorithm>
#include <iterator>

namespace fathom {
namespace {

/// Weight of the newest of many measurements. The first few count alike.
constexpr double kNewest = 0.1;
/// A time this many times as long as expected counts as this much.
constexpr double kOutlier = 3;
/// Cost of a further token, as a share of the cost of a token of the largest step seen, while nothing larger was seen:
/// low enough for more tokens to be tried.
constexpr double kUnseenToken = 0.3;

}  // namespace

void LateMean::add(double seconds) {
  ++times_;
  if (times_ > 1) seconds = std::min(seconds, kOutlier * seconds_);
  seconds_ += std::max(kNewest, 1 / static_cast<double>(times_)) * (seconds - seconds_);
}

void StepCosts::took(int64_t tokens, double seconds) {
  costs_[tokens].add(seconds);
}

std::optional<double> StepCosts::of(int64_t tokens) const {
  if (costs_.empty()) return std::nullopt;
  const auto above = costs_.lower_bound(tokens);
  if (above != costs_.end() && above->first == tokens) return above->second.seconds();
  if (above == costs_.begin())  // smaller than all: not more than the smallest
    return above->second.seconds();
  const auto below = std::prev(above);
  const double known = below->second.seconds(), more = static_cast<double>(tokens - below->first);
  if (above == costs_.end()) {
    double each = kUnseenToken * known / static_cast<double>(below->first);
    if (below != costs_.begin()) {
      const auto first = costs_.begin();
      each = std::max(each, (known - first->second.seconds()) / static_cast<double>(below->first - first->first));
    }
    return known + more * each;
  }
  return known + more / static_cast<double>(above->first - below->first) * (above->second.seconds() - known);
}

}  // namespace fathom
