#include "trace/sequence.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace fathom::trace {
namespace {

/// The longest stretch in which names keep repeating after `period`, with one miss in ten allowed.
std::pair<size_t, size_t> longest_run(const std::vector<uint32_t>& names, size_t period) {
  size_t best_begin = 0, best_end = 0, begin = period, good = 0, last_good = 0;
  int64_t credit = 0;
  for (size_t i = period; i < names.size(); ++i) {
    if (names[i] == names[i - period]) {
      if (good == 0) begin = i, credit = 0;
      ++good;
      credit = std::min<int64_t>(credit + 1, 20);
      last_good = i + 1;
      if (last_good - begin > best_end - best_begin) best_begin = begin, best_end = last_good;
    } else if (good > 0) {
      credit -= 9;
      if (credit < 0) good = 0;
    }
  }
  return {best_begin, best_end};
}

}  // namespace

Repeat find_repeat(const std::vector<uint32_t>& names) {
  // Candidates: the distances at which names recur most often. A name that occurs once in a layer votes for the
  // layer's length; one that occurs twice votes for less, and its votes are split.
  std::unordered_map<uint32_t, std::vector<size_t>> last;  // the last few positions of each name
  std::unordered_map<size_t, size_t> votes;
  for (size_t i = 0; i < names.size(); ++i) {
    auto& seen = last[names[i]];
    for (const size_t at : seen) ++votes[i - at];
    if (seen.size() == 8) seen.erase(seen.begin());
    seen.push_back(i);
  }
  std::vector<std::pair<size_t, size_t>> ranked;  // votes, distance
  for (const auto& [distance, n] : votes)
    if (distance >= 2) ranked.emplace_back(n, distance);
  std::sort(ranked.begin(), ranked.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  ranked.resize(std::min<size_t>(ranked.size(), 64));
  Repeat best;
  size_t best_cover = 0;
  for (const auto& [n, period] : ranked) {
    const auto [begin, end] = longest_run(names, period);
    const size_t cover = end - begin;
    const size_t count = cover / period + 1;
    if (count < 2 || cover < period) continue;
    // A multiple of the true period covers hardly more: it must be clearly better to win.
    const bool better = period < best.period ? cover * 10 >= best_cover * 9 : cover * 9 > best_cover * 10;
    if (best.count == 0 || better) {
      best = {begin - period, period, count};
      best_cover = std::max(cover, best_cover);
    }
  }
  return best_cover * 4 >= names.size() ? best : Repeat{};  // less than a quarter of the sequence explains nothing
}

std::vector<size_t> find_cycle_starts(const std::vector<uint32_t>& names) {
  std::map<uint32_t, std::vector<size_t>> places;
  for (size_t i = 0; i < names.size(); ++i) places[names[i]].push_back(i);
  // A name that occurs once in each cycle recurs at nearly one distance. Distances of names are gathered in bins of
  // about 3 %; the longest distance with enough witnesses wins.
  struct Witness {
    size_t distance = 0, first = 0;
    uint32_t name = 0;
  };
  std::vector<Witness> witnesses;
  for (const auto& [name, at] : places) {
    if (at.size() < 3) continue;
    std::vector<size_t> gaps;
    for (size_t k = 1; k < at.size(); ++k) gaps.push_back(at[k] - at[k - 1]);
    std::vector<size_t> sorted = gaps;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(sorted.size() / 2), sorted.end());
    const size_t median = sorted[sorted.size() / 2];
    const auto near = static_cast<size_t>(std::count_if(
        gaps.begin(), gaps.end(), [&](size_t g) { return g * 32 >= median * 31 && g * 32 <= median * 33; }));
    if (median < 8 || near * 10 < gaps.size() * 9 || (at.back() - at.front()) * 10 < names.size() * 5) continue;
    witnesses.push_back({median, at.front(), name});
  }
  std::sort(witnesses.begin(), witnesses.end(), [](const Witness& a, const Witness& b) {
    return a.distance != b.distance ? a.distance > b.distance : a.first < b.first;
  });
  for (const Witness& w : witnesses) {
    size_t agree = 0;
    const Witness* first = &w;
    for (const Witness& other : witnesses) {
      if (other.distance * 32 < w.distance * 31 || other.distance * 32 > w.distance * 33) continue;
      ++agree;
      if (other.first < first->first) first = &other;
    }
    if (agree < 2) continue;
    return places[first->name];
  }
  return {};
}

}  // namespace fathom::trace
