#include "trace/html/timeline.h"

#include <algorithm>

#include "base/error.h"
#include "trace/format.h"

namespace fathom::trace {
namespace {

/// Takes the first `limit` of the events [begin, finish) of Trace::events that `keep` accepts.
template <typename Keep>
TimelineView view_of(const Trace& trace, DeviceId device, size_t begin, size_t finish, size_t limit, Keep keep) {
  TimelineView view;
  view.device = device;
  bool first = true;
  for (size_t i = begin; i < finish && i < trace.events.size(); ++i) {
    const GpuEvent& e = trace.events[i];
    if (!keep(e)) continue;
    if (view.events.size() == limit) {
      ++view.left_out;
      continue;
    }
    view.events.push_back(i);
    view.start = first ? e.start : std::min(view.start, e.start);
    view.end = first ? e.end() : std::max(view.end, e.end());
    first = false;
  }
  return view;
}

TimelineView step_view(const Analysis& a, size_t number, const char* which, size_t limit) {
  const Step& step = a.steps.steps[number];
  TimelineView view = view_of(*a.trace, a.steps.device, step.begin, step.finish, limit,
                              [&](const GpuEvent& e) { return a.trace->device_of(e) == a.steps.device; });
  view.title =
      fmt::format("step {} of {} ({}): {}", number + 1, a.steps.steps.size(), which, time_text(step.duration()));
  return view;
}

/// The step in the middle by duration, and the longest one.
std::pair<size_t, size_t> typical_and_slowest(const std::vector<Step>& steps) {
  std::vector<size_t> order(steps.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return steps[x].duration() < steps[y].duration(); });
  return {order[(order.size() - 1) / 2], order.back()};
}

TimelineView window_view(const Analysis& a, size_t limit) {
  const DeviceSummary* device = nullptr;
  for (const DeviceSummary& d : a.summary.devices)
    if (!device || d.busy > device->busy) device = &d;
  const Window* window = nullptr;
  if (device)
    for (const Window& w : device->windows)
      if (!window || w.busy > window->busy) window = &w;
  if (!window) return {};
  TimelineView view = view_of(*a.trace, device->device, 0, a.trace->events.size(), limit, [&](const GpuEvent& e) {
    return a.trace->device_of(e) == device->device && e.start >= window->start && e.start <= window->end;
  });
  view.title = device->windows.size() == 1
                   ? "the whole recording (no steps found)"
                   : fmt::format("the stretch with the most work, one of {} (no steps found)", device->windows.size());
  return view;
}

}  // namespace

std::vector<TimelineView> timeline_views(const Analysis& a, size_t limit) {
  std::vector<TimelineView> out;
  if (!a.steps.steps.empty()) {
    const auto [typical, slowest] = typical_and_slowest(a.steps.steps);
    const size_t count = a.steps.steps.size();
    out.push_back(step_view(a, typical, count == 1 ? "the only one" : count == 2 ? "the faster" : "the median", limit));
    if (slowest != typical) out.push_back(step_view(a, slowest, "the slowest", limit));
  } else {
    out.push_back(window_view(a, limit));
  }
  std::erase_if(out, [](const TimelineView& v) { return v.events.empty(); });
  return out;
}

std::vector<size_t> step_points(const StepAnalysis& a, size_t limit) {
  std::vector<size_t> out;
  const size_t count = a.steps.size(), parts = std::max<size_t>(limit / 2, 1);
  if (count <= limit) {
    for (size_t i = 0; i < count; ++i) out.push_back(i);
    return out;
  }
  const auto shorter = [](const Step& x, const Step& y) { return x.duration() < y.duration(); };
  for (size_t p = 0; p < parts; ++p) {
    const auto first = a.steps.begin() + static_cast<ptrdiff_t>(count * p / parts);
    const auto last = a.steps.begin() + static_cast<ptrdiff_t>(count * (p + 1) / parts);
    if (first == last) continue;
    const auto [low, high] = std::minmax_element(first, last, shorter);
    out.push_back(static_cast<size_t>(std::min(low, high) - a.steps.begin()));
    if (low != high) out.push_back(static_cast<size_t>(std::max(low, high) - a.steps.begin()));
  }
  return out;
}

}  // namespace fathom::trace
