#include "engine/step_costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

namespace fathom {
namespace {

/// Weight of the newest of many measurements.
constexpr double kNewest = 0.1;
/// A time this many times as long as expected counts as this much; one this many times as short shows that the first
/// ones were held up.
constexpr double kOutlier = 1.5;
/// A mean this many measurements old counts as half of the next one; a cell that old is no longer believed.
constexpr int64_t kStale = 256, kForgotten = 2048;
/// Power of the number of tokens that a step's time grows with while only one number of tokens was seen.
constexpr double kPower = 0.5;
/// Powers that the last two measurements may say beyond the largest one.
constexpr double kLeastPower = 0.2, kMostPower = 1;
/// Two measurements tell a power when their numbers of tokens are this far apart.
constexpr double kApart = 1.4;

}  // namespace

/// Few tokens each have a cell, more of them share one: eight cells to a doubling.
int64_t StepCosts::cell_of(int64_t tokens) const {
  const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), tokens);
  if (size != sizes_.end()) return *size;
  if (tokens <= 16) return tokens;
  const int64_t width = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens - 1))) / 8;
  return (tokens + width - 1) / width * width;
}

void LateMean::add(double seconds, int64_t now) {
  if (times_ < 3 && kOutlier * seconds < seconds_) times_ = 0;
  ++times_;
  double weight = std::max(kNewest, 1 / static_cast<double>(times_));
  if (times_ > 1 && now - last_ > kStale) weight = std::max(weight, 0.5);
  if (times_ > 1) seconds = std::min(seconds, kOutlier * seconds_);
  seconds_ += weight * (seconds - seconds_);
  last_ = now;
}

void StepCosts::took(int64_t tokens, double seconds) {
  ++now_;
  const int64_t size = cell_of(tokens);
  Cell& cell = cells_[size];
  cell.time.add(seconds, now_);
  cell.tokens = static_cast<double>(!sizes_.empty() && size <= sizes_.back() ? size : tokens);
  if (now_ % kStale == 0)
    std::erase_if(cells_, [&](const auto& c) { return now_ - c.second.time.last() > kForgotten; });
}

int64_t StepCosts::age(int64_t tokens) const {
  const auto at = cells_.find(cell_of(tokens));
  return at == cells_.end() ? std::numeric_limits<int64_t>::max() : now_ - at->second.time.last();
}

/// The power law through the cells around `tokens`, or from the outermost one on.
double StepCosts::law(double tokens) const {
  const auto above =
      std::find_if(cells_.begin(), cells_.end(), [&](const auto& c) { return c.second.tokens >= tokens; });
  if (above == cells_.begin()) {
    const Cell& least = above->second;
    return least.time.seconds() * std::pow(tokens / least.tokens, kPower);
  }
  const Cell& below = std::prev(above)->second;
  double power = kPower;
  const auto slope = [](const Cell& a, const Cell& b) {
    return std::log(b.time.seconds() / a.time.seconds()) / std::log(b.tokens / a.tokens);
  };
  if (above != cells_.end()) {
    power = slope(below, above->second);
  } else {
    for (auto at = std::prev(above); at != cells_.begin();) {
      --at;
      if (below.tokens < kApart * at->second.tokens) continue;
      power = std::clamp(slope(at->second, below), kLeastPower, kMostPower);
      break;
    }
  }
  return below.time.seconds() * std::pow(tokens / below.tokens, power);
}

std::optional<double> StepCosts::of(int64_t tokens) const {
  if (cells_.empty()) return std::nullopt;
  const auto own = cells_.lower_bound(cell_of(tokens));
  const bool measured = own != cells_.end() && own->first == cell_of(tokens);
  double seconds = measured ? own->second.time.seconds() : law(static_cast<double>(cell_of(tokens)));
  for (auto larger = own; larger != cells_.end(); ++larger) seconds = std::min(seconds, larger->second.time.seconds());
  return seconds;
}

}  // namespace fathom
