#include "trace/ranking.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace fathom::trace {
namespace {

/// Nearest rank: the smallest value that at least `percent` of the values do not exceed.
Ns percentile(Ns* begin, Ns* end, int percent) {
  const auto n = static_cast<size_t>(end - begin);
  const size_t at = (n * static_cast<size_t>(percent) + 99) / 100 - 1;
  std::nth_element(begin, begin + at, end);
  return begin[at];
}

}  // namespace

Ranking rank_kernels(const Trace& trace, std::span<const size_t> left_out) {
  constexpr size_t kinds = 3;
  std::vector<int32_t> row_of(trace.names.size() * kinds, -1);
  Ranking out;
  std::vector<int32_t> rows(trace.events.size(), -1);
  std::unordered_map<uint64_t, Ns> shape_time;
  Ns all = 0, kernels = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    if (!left_out.empty() && left_out.front() == i) {
      left_out = left_out.subspan(1);
      continue;
    }
    const GpuEvent& e = trace.events[i];
    int32_t& row = row_of[index(e.name) * kinds + static_cast<size_t>(e.kind)];
    if (row < 0) {
      row = static_cast<int32_t>(out.rows.size());
      out.rows.push_back({e.name, e.kind});
      out.rows.back().min = std::numeric_limits<Ns>::max();
    }
    rows[i] = row;
    KernelRow& r = out.rows[static_cast<size_t>(row)];
    ++r.calls;
    r.total += e.duration;
    r.min = std::min(r.min, e.duration);
    r.max = std::max(r.max, e.duration);
    shape_time[static_cast<uint64_t>(row) << 32 | index(e.shape)] += e.duration;
    all += e.duration;
    if (e.kind == WorkKind::kernel) kernels += e.duration;
  }
  std::vector<size_t> offset(out.rows.size() + 1, 0);
  for (size_t r = 0; r < out.rows.size(); ++r) offset[r + 1] = offset[r] + static_cast<size_t>(out.rows[r].calls);
  std::vector<Ns> durations(trace.events.size());
  std::vector<size_t> next(offset.begin(), offset.end() - 1);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] >= 0) durations[next[static_cast<size_t>(rows[i])]++] = trace.events[i].duration;
  std::vector<Ns> best(out.rows.size(), -1);
  for (const auto& [key, time] : shape_time) {
    KernelRow& r = out.rows[key >> 32];
    ++r.shapes;
    const auto shape = static_cast<ShapeId>(key & 0xFFFFFFFF);
    if (time > best[key >> 32] || (time == best[key >> 32] && index(shape) < index(r.shape))) {
      best[key >> 32] = time;
      r.shape = shape;
    }
  }
  for (size_t r = 0; r < out.rows.size(); ++r) {
    KernelRow& row = out.rows[r];
    Ns* begin = durations.data() + offset[r];
    row.p50 = percentile(begin, durations.data() + offset[r + 1], 50);
    row.p95 = percentile(begin, durations.data() + offset[r + 1], 95);
    row.share = all > 0 ? static_cast<double>(row.total) / static_cast<double>(all) : 0;
    if (row.kind == WorkKind::kernel && kernels > 0)
      row.kernel_share = static_cast<double>(row.total) / static_cast<double>(kernels);
  }
  std::sort(out.rows.begin(), out.rows.end(), [&](const KernelRow& a, const KernelRow& b) {
    if (a.total != b.total) return a.total > b.total;
    if (a.name != b.name) return trace.names.text(a.name) < trace.names.text(b.name);
    return a.kind < b.kind;
  });
  return out;
}

}  // namespace fathom::trace
