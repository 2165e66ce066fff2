#include "trace/launches.h"

#include <algorithm>
#include <tuple>

namespace fathom::trace {
namespace {

/// Calls that start work. Synchronising calls carry correlation ids too.
bool starts_work(const HostCall& c) {
  return c.correlation != 0 && c.kind != HostKind::synchronize;
}

}  // namespace

LaunchTable::LaunchTable(const Trace& trace) : trace_(trace) {
  for (const HostCall& c : trace.calls)
    if (starts_work(c)) launches_.push_back({c.rank_label, c.correlation, c.start});
  std::sort(launches_.begin(), launches_.end(), [](const Launch& a, const Launch& b) {
    return std::tie(a.label, a.correlation, a.start) < std::tie(b.label, b.correlation, b.start);
  });
}

std::optional<Ns> LaunchTable::start_of(const GpuEvent& event) const {
  if (event.correlation == 0) return {};
  const uint32_t label = trace_.devices[index(trace_.device_of(event))].label;
  const auto at =
      std::lower_bound(launches_.begin(), launches_.end(), std::tie(label, event.correlation),
                       [](const Launch& a, const auto& key) { return std::tie(a.label, a.correlation) < key; });
  if (at == launches_.end() || at->label != label || at->correlation != event.correlation) return {};
  return at->start;
}

void match_launches(Trace& trace) {
  const LaunchTable launches(trace);
  if (!launches.known()) return;
  std::vector<std::pair<uint32_t, int64_t>> worked;
  for (const GpuEvent& e : trace.events) {
    if (e.correlation == 0) continue;
    worked.emplace_back(trace.devices[index(trace.device_of(e))].label, e.correlation);
    trace.import.work_without_launch += !launches.start_of(e);
  }
  std::sort(worked.begin(), worked.end());
  worked.erase(std::unique(worked.begin(), worked.end()), worked.end());
  for (const HostCall& c : trace.calls)
    if (c.correlation && (c.kind == HostKind::launch || c.kind == HostKind::graph_launch))
      trace.import.launches_without_work +=
          !std::binary_search(worked.begin(), worked.end(), std::pair(c.rank_label, c.correlation));
}

}  // namespace fathom::trace
