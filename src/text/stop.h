// Stop strings over streamed text: the text before the first one, never a part of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom::text {

/// One stream. However the text is cut, the released pieces together are the same.
class StopMatcher {
 public:
  /// Throws Error when a stop string is empty or not UTF-8. With `include` the stop string itself is released too.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  /// Takes the next text and returns what is safe to show: text that may yet turn into a stop string is held back.
  /// Of stop strings that end at the same byte the longest counts; of others the one that ends first. After a stop
  /// string nothing is released any more.
  std::string push(std::string_view text);

  /// What was held back, when the text ended without a stop string.
  std::string finish();

  bool stopped() const { return matched_ >= 0; }
  /// Index of the stop string that was met, -1 if none was.
  int matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> borders_;  // of each stop string: the failure function of Knuth-Morris-Pratt
  std::vector<size_t> reached_;               // of each: how many of its bytes the text ends with
  std::string held_;
  bool include_;
  int matched_ = -1;
};

}  // namespace fathom::text
