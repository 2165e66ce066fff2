// What steps have cost lately, by the number of tokens they fed: measured where it can be, interpolated where not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fathom {

class StepCosts {
 public:
  /// A step of decoding requests alone that fed `tokens` tokens took so long.
  void took(int64_t tokens, double seconds);
  /// Expected seconds of such a step; nothing before the first measurement.
  std::optional<double> of(int64_t tokens) const;

 private:
  struct Cost {
    double seconds = 0;
    int64_t steps = 0;
  };
  std::map<int64_t, Cost> costs_;  // by tokens
};

}  // namespace fathom
