#include "trace/saving.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace fathom::trace {

SavingBound::SavingBound(const Trace& trace, const Summary& summary, const Ranking& ranking)
    : summary_(summary), streams_(trace.streams.size()) {
  constexpr size_t kinds = 3;
  std::vector<size_t> row_of(trace.names.size() * kinds, 0);
  for (size_t i = 0; i < ranking.rows.size(); ++i)
    row_of[index(ranking.rows[i].name) * kinds + static_cast<size_t>(ranking.rows[i].kind)] = i;
  std::unordered_map<uint64_t, Ns> totals;
  for (const GpuEvent& e : trace.events) {
    const size_t row = row_of[index(e.name) * kinds + static_cast<size_t>(e.kind)];
    totals[uint64_t{row} << 32 | index(e.stream)] += e.duration;
  }
  parts_.reserve(totals.size());
  for (const auto& [key, total] : totals) parts_.push_back({key >> 32, key & 0xFFFFFFFF, total});
  std::sort(parts_.begin(), parts_.end(),
            [](const Part& a, const Part& b) { return std::tie(a.row, a.stream) < std::tie(b.row, b.stream); });
  first_of_row_.assign(ranking.rows.size() + 1, parts_.size());
  for (size_t i = parts_.size(); i-- > 0;) first_of_row_[parts_[i].row] = i;
}

Ns SavingBound::without(std::span<const size_t> rows) const {
  std::vector<Ns> removed(streams_, 0);
  Ns work = 0;
  for (const size_t row : rows)
    for (size_t i = first_of_row_[row]; i < parts_.size() && parts_[i].row == row; ++i) {
      removed[parts_[i].stream] += parts_[i].total;
      work += parts_[i].total;
    }
  Ns saved = 0;
  for (const DeviceSummary& d : summary_.devices) {
    Ns rest = 0;
    for (const StreamSummary& s : d.streams) rest = std::max(rest, s.busy - removed[index(s.stream)]);
    saved += d.busy - std::min(rest, d.busy);
  }
  return std::min(saved, work);
}

}  // namespace fathom::trace
