#include "trace/summary.h"

#include <algorithm>
#include <limits>
#include <map>

namespace fathom::trace {
namespace {

/// Dependent launches may overlap their predecessor, but not outlast their successor's successor by this much.
constexpr Ns implausible_overrun = 100'000;

void keep_largest(std::vector<Hole>& holes, const Hole& hole, size_t limit) {
  const auto longer = [](const Hole& a, const Hole& b) {
    return a.duration != b.duration ? a.duration > b.duration : a.start < b.start;
  };
  if (holes.size() == limit && (limit == 0 || !longer(hole, holes.back()))) return;
  holes.insert(std::upper_bound(holes.begin(), holes.end(), hole, longer), hole);
  if (holes.size() > limit) holes.pop_back();
}

/// One stream while its device is walked in time order.
struct StreamWalk {
  static constexpr Ns never = std::numeric_limits<Ns>::min();
  StreamSummary out;
  Ns end = never, end_before_last = never;      // latest end of all events, and of all but the last
  size_t longest = 0, longest_before_last = 0;  // the events that end there
  std::vector<size_t> defects;
};

void walk_stream(StreamWalk& w, const GpuEvent& e, size_t i) {
  ++w.out.events;
  w.out.total += e.duration;
  if (e.duration == 0) return;
  if (e.start < w.end) ++w.out.overlapping;
  if (w.end_before_last != StreamWalk::never && w.end_before_last - e.start > implausible_overrun) {
    ++w.out.implausible;
    w.out.implausible_time = std::max(w.out.implausible_time, w.end_before_last - e.start);
    if (w.defects.empty() || w.defects.back() != w.longest_before_last) w.defects.push_back(w.longest_before_last);
  }
  if (w.end > w.end_before_last) w.end_before_last = w.end, w.longest_before_last = w.longest;
  w.out.busy += std::max<Ns>(0, e.end() - std::max(w.end, e.start));
  if (e.end() > w.end) w.end = e.end(), w.longest = i;
}

void find_windows(const Trace& trace, size_t begin, size_t end, const SummaryOptions& options, DeviceSummary& d) {
  const Ns split = std::max(options.split_least, static_cast<Ns>(static_cast<double>(d.span()) * options.split_share));
  Window window{d.first, d.first, 0, 0};
  Ns reach = d.first;
  for (size_t i = begin; i < end; ++i) {
    const GpuEvent& e = trace.events[i];
    if (e.start - reach > split && window.events > 0) {
      window.end = reach;
      d.windows.push_back(window);
      window = {e.start, e.start, 0, 0};
      reach = e.start;
    }
    ++window.events;
    window.busy += std::max<Ns>(0, e.end() - std::max(reach, e.start));
    reach = std::max(reach, e.end());
  }
  window.end = reach;
  d.windows.push_back(window);
}

DeviceSummary summarise_device(const Trace& trace, size_t begin, size_t end, const SummaryOptions& options) {
  DeviceSummary d;
  d.device = trace.device_of(trace.events[begin]);
  d.first = trace.events[begin].start;
  std::map<size_t, StreamWalk> streams;
  Ns reach = std::numeric_limits<Ns>::min();
  size_t reach_event = begin;
  for (size_t i = begin; i < end; ++i) {
    const GpuEvent& e = trace.events[i];
    ++d.events;
    d.total += e.duration;
    if (e.kind == WorkKind::kernel) {
      ++d.kernels;
      d.kernel_total += e.duration;
    }
    walk_stream(streams[index(e.stream)], e, i);
    d.last = i == begin ? e.end() : std::max(d.last, e.end());
    if (e.duration == 0) continue;  // a point neither ends a hole nor starts one
    if (reach != std::numeric_limits<Ns>::min() && e.start > reach) {
      ++d.hole_count;
      keep_largest(d.holes, {reach, e.start - reach, reach_event, i}, options.holes_kept);
    }
    d.busy += std::max<Ns>(0, e.end() - std::max(reach, e.start));
    if (e.end() > reach) {
      reach = e.end();
      reach_event = i;
    }
  }
  for (auto& [id, walk] : streams) {
    walk.out.stream = static_cast<StreamId>(id);
    walk.out.overlap = walk.out.total - walk.out.busy;
    d.streams.push_back(walk.out);
    d.defects.insert(d.defects.end(), walk.defects.begin(), walk.defects.end());
  }
  std::sort(d.defects.begin(), d.defects.end());
  d.defects.erase(std::unique(d.defects.begin(), d.defects.end()), d.defects.end());
  std::stable_sort(d.streams.begin(), d.streams.end(),
                   [](const StreamSummary& a, const StreamSummary& b) { return a.total > b.total; });
  find_windows(trace, begin, end, options, d);
  return d;
}

}  // namespace

Summary summarise(const Trace& trace, const SummaryOptions& options) {
  Summary out;
  for (size_t begin = 0; begin < trace.events.size();) {
    size_t end = begin;
    const DeviceId device = trace.device_of(trace.events[begin]);
    while (end < trace.events.size() && trace.device_of(trace.events[end]) == device) ++end;
    out.devices.push_back(summarise_device(trace, begin, end, options));
    const DeviceSummary& d = out.devices.back();
    out.events += d.events;
    out.kernels += d.kernels;
    out.total += d.total;
    out.kernel_total += d.kernel_total;
    out.busy += d.busy;
    out.span = saturated_sum(out.span, d.span());
    begin = end;
  }
  return out;
}

}  // namespace fathom::trace
