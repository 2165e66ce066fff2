#include "text/stop.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace fathom::text {
namespace {

/// border[i]: length of the longest proper prefix of s that also ends at s[i].
std::vector<size_t> borders_of(std::string_view s) {
  std::vector<size_t> border(s.size(), 0);
  for (size_t i = 1, k = 0; i < s.size(); ++i) {
    while (k > 0 && s[i] != s[k]) k = border[k - 1];
    if (s[i] == s[k]) ++k;
    border[i] = k;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), reached_(stops_.size(), 0), include_(include) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) fail("a stop string is empty");
    if (!is_valid_utf8(stop)) fail("stop string is not UTF-8: {}", printable(stop));
    borders_.push_back(borders_of(stop));
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped()) return {};
  std::string out = std::move(held_);
  held_.clear();
  for (const char c : text) {
    out += c;
    for (size_t s = 0; s < stops_.size(); ++s) {
      size_t& k = reached_[s];
      while (k > 0 && stops_[s][k] != c) k = borders_[s][k - 1];
      if (stops_[s][k] == c) ++k;
      if (k == stops_[s].size() && (matched_ < 0 || k > stops_[static_cast<size_t>(matched_)].size()))
        matched_ = static_cast<int>(s);
    }
    if (!stopped()) continue;
    if (!include_) out.resize(out.size() - stops_[static_cast<size_t>(matched_)].size());
    return out;
  }
  const size_t held = reached_.empty() ? 0 : *std::max_element(reached_.begin(), reached_.end());
  held_ = out.substr(out.size() - held);
  out.resize(out.size() - held);
  return out;
}

std::string StopMatcher::finish() {
  std::fill(reached_.begin(), reached_.end(), 0);
  return std::move(held_);
}

}  // namespace fathom::text
