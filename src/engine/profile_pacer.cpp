#include "engine/profile_pacer.h"

#include <algorithm>

namespace fathom {
namespace {

constexpr size_t kOthers = 8, kCosts = 10, kUnsettled = 64;
constexpr int64_t kRun = 10;           // steps that are recorded in a row
constexpr int64_t kLongestRun = 40;    // where that is cheap; then others, to compare with
constexpr double kAssumedCost = 0.12;  // of a step, until one is measured

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void keep(std::vector<double>& values, double value, size_t most) {
  if (values.size() == most) values.erase(values.begin());
  values.push_back(value);
}

}  // namespace

/// Seconds of a step of that size without records; 0: none is known.
double ProfilePacer::usual(int64_t size) const {
  return size > 0 && size == size_ && !others_.empty() ? median(others_) : 0;
}

void ProfilePacer::note_cost(double seconds) {
  overhead_ += seconds;
  keep(costs_, std::max(0.0, seconds), kCosts);
}

void ProfilePacer::switched(double seconds) {
  overhead_ += seconds;
  both_switches_ = last_switch_ + seconds, last_switch_ = seconds;
}

/// What recording one more step of `step` seconds will cost.
double ProfilePacer::cost_of(double step) const {
  return costs_.empty() ? kAssumedCost * step : median(costs_);
}

bool ProfilePacer::step_ended(bool recorded, int64_t size, double seconds) {
  ++steps_;
  if (recorded) {
    ++recorded_, ++in_a_row_;
    if (const double other = usual(size); other > 0) {
      note_cost(seconds - other);
      work_ += other;
    } else {
      const double assumed = cost_of(seconds);
      work_ += seconds - assumed, assumed_ += assumed;
      if (size > 0 && unsettled_.size() < kUnsettled) unsettled_.push_back({size, seconds, assumed});
    }
  } else {
    in_a_row_ = 0;
    work_ += seconds;
    if (size > 0) {
      if (size != size_) others_.clear(), size_ = size;
      keep(others_, seconds, kOthers);
      for (const Sample& s : unsettled_) {
        if (s.size != size) continue;
        note_cost(s.seconds - seconds);
        work_ += seconds - (s.seconds - s.assumed), assumed_ -= s.assumed;
      }
      std::erase_if(unsettled_, [size](const Sample& s) { return s.size == size; });
    }
  }
  if (recorded && in_a_row_ < kRun) return true;
  if (in_a_row_ >= kLongestRun || (recorded && usual(size) == 0)) return false;
  const double step = usual(size) > 0 ? usual(size) : seconds, own = cost_of(step);
  const double next = recorded ? own : both_switches_ + kRun * own, time = work_ + (recorded ? 1 : kRun) * step;
  return overhead_ + assumed_ + next <= share_ * time;
}

RecordingCost ProfilePacer::cost() const {
  return {steps_, recorded_, costs_.empty() ? 0 : work_, overhead_ + assumed_};
}

}  // namespace fathom
