// What steps have cost lately, by the number of tokens they fed: measured where it can be, interpolated where not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fathom {

/// Mean of times of late. The first few count alike; one that is many times as long as expected was held up by
/// something else and counts for less.
class LateMean {
 public:
  void add(double seconds);
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
  int64_t times_ = 0;
};

class StepCosts {
 public:
  /// A step of decoding requests alone that fed `tokens` tokens took so long.
  void took(int64_t tokens, double seconds);
  /// Expected seconds of such a step; nothing before the first measurement.
  std::optional<double> of(int64_t tokens) const;

 private:
  std::map<int64_t, LateMean> costs_;  // by tokens
};

}  // namespace fathom
