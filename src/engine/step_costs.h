// What steps have cost lately, by the number of tokens they fed: measured where it can be, between and beyond by the
// power law through what was measured (a decode step grows with the tokens to the power of 0.3 to 0.5 while weights are
// read, and to the power of 1 where every token costs; on both axes logarithmic that is close to a line).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace fathom {

/// Mean of times of late. The first few count alike, without those that something else held up.
class LateMean {
 public:
  /// `now` counts additions to all means; one that was not added to for long trusts what is new.
  void add(double seconds, int64_t now);
  double seconds() const { return seconds_; }
  int64_t last() const { return last_; }

 private:
  double seconds_ = 0;
  int64_t times_ = 0, last_ = 0;
};

class StepCosts {
 public:
  /// `sizes`: rising numbers of tokens that steps are filled up to, so that others cost what the next larger one does;
  /// beyond the last one they are not.
  explicit StepCosts(std::span<const int64_t> sizes = {}) : sizes_(sizes.begin(), sizes.end()) {}
  /// A step of decoding requests alone that fed `tokens` tokens, at least one, took so long.
  void took(int64_t tokens, double seconds);
  /// Expected seconds of such a step; nothing before the first measurement. Never more than that of a larger step.
  std::optional<double> of(int64_t tokens) const;
  /// Tokens of the largest step that was measured; 0: none was.
  int64_t largest() const { return cells_.empty() ? 0 : cells_.rbegin()->first; }
  /// Steps since one of about so many tokens was measured; very many if none was.
  int64_t age(int64_t tokens) const;

 private:
  int64_t cell_of(int64_t tokens) const;
  double law(double tokens) const;

  struct Cell {
    LateMean time;
    double tokens = 0;  // of the last step in it
  };
  std::map<int64_t, Cell> cells_;  // by the largest number of tokens of each
  std::vector<int64_t> sizes_;
  int64_t now_ = 0;
};

}  // namespace fathom
