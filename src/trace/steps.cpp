#include "trace/steps.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "trace/format.h"
#include "trace/launches.h"
#include "trace/names.h"
#include "trace/sequence.h"

namespace fathom::trace {
namespace {

struct Range {
  size_t begin = 0, end = 0;
};

/// A marker's name with its numbers taken out: markers of one kind then agree.
std::string marker_class(std::string_view name) {
  // fathom's own tell behind the colon what is in the step: "step 12: prefill 64 tokens + decode B=3".
  if (name.starts_with("step ")) name = name.substr(0, name.find(':'));
  std::string out;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      out += c;
    else if (out.empty() || out.back() != '#')
      out += '#';
  }
  return out;
}

bool sounds_like_a_step(std::string_view name) {
  for (const std::string_view word :
       {"ProfilerStep", "execute_", "step", "Step", "decode", "generation", "forward", "iteration"})
    if (name.find(word) != std::string_view::npos) return true;
  return false;
}

class StepFinder {
 public:
  StepFinder(const Trace& trace, const Summary& summary) : trace_(trace) {
    const DeviceSummary* most = nullptr;
    for (const DeviceSummary& d : summary.devices)
      if (!most || d.total > most->total) most = &d;
    if (!most) return;
    out_.device = most->device;
    busy_ = most->busy;
    while (device_.begin < trace.events.size() && trace.device_of(trace.events[device_.begin]) != most->device)
      ++device_.begin;
    device_.end = device_.begin + static_cast<size_t>(most->events);
  }

  StepAnalysis run() {
    if (device_.begin == device_.end) return out_;
    if (!from_gpu_annotations()) {
      from_host_annotations();
      StepAnalysis host = out_;
      clear();
      // Graphs show the step without what surrounds it. Many graphs to one marker are pieces of a step.
      const bool graphs = from_graphs() && (host.steps.empty() || out_.steps.size() <= 2 * host.steps.size());
      if (!graphs && !host.steps.empty()) out_ = std::move(host);
      if (!graphs && out_.source != StepSource::host_annotation) clear(), from_sequence();
    }
    if (out_.steps.empty()) out_.source = StepSource::none;
    statistics();
    return std::move(out_);
  }

 private:
  const GpuEvent& event(size_t i) const { return trace_.events[i]; }

  void clear() {
    const DeviceId device = out_.device;
    out_ = {};
    out_.device = device;
  }

  void add_step(Range r) {
    Step s;
    s.begin = r.begin, s.finish = r.end;
    s.start = event(r.begin).start;
    Ns reach = s.start;
    for (size_t i = r.begin; i < r.end; ++i) {
      const GpuEvent& e = event(i);
      s.kernels += e.kind == WorkKind::kernel;
      s.total += e.duration;
      if (e.duration == 0) continue;
      if (e.start > reach) ++s.gaps, s.gap_time += e.start - reach;
      s.busy += std::max<Ns>(0, e.end() - std::max(reach, e.start));
      reach = std::max(reach, e.end());
    }
    s.end = reach;
    if (s.kernels > 0) out_.steps.push_back(s);
  }

  /// First event of the device that starts at or after `time`.
  size_t at_time(Ns time) const {
    const auto begin = trace_.events.begin();
    return static_cast<size_t>(std::lower_bound(begin + static_cast<long>(device_.begin),
                                                begin + static_cast<long>(device_.end), time,
                                                [](const GpuEvent& e, Ns t) { return e.start < t; }) -
                               begin);
  }

  /// The kind of marker that divides the time best, as indices of annotations in order of time.
  std::vector<size_t> choose_markers(const std::vector<size_t>& candidates, double cover_least) const {
    std::map<std::string, std::vector<size_t>> classes;
    for (const size_t i : candidates) classes[marker_class(trace_.names.text(trace_.annotations[i].name))].push_back(i);
    std::vector<size_t> best;
    std::tuple<bool, bool, double> best_score{false, false, 0};
    for (auto& [name, members] : classes) {
      std::vector<size_t> apart;  // markers of a class repeat on several streams: keep those that do not overlap
      Ns cover = 0, reach = std::numeric_limits<Ns>::min();
      for (const size_t i : members) {
        const Annotation& a = trace_.annotations[i];
        if (a.start < reach) continue;
        apart.push_back(i);
        cover += a.duration;
        reach = a.end();
      }
      const double share = static_cast<double>(cover) / static_cast<double>(std::max<Ns>(1, busy_));
      if (share < cover_least) continue;
      const std::tuple<bool, bool, double> score{sounds_like_a_step(name), apart.size() > 1,
                                                 std::min(share, 1.0) / static_cast<double>(apart.size())};
      if (best.empty() || score > best_score) best = apart, best_score = score;
    }
    return best;
  }

  bool from_gpu_annotations() {
    std::vector<size_t> candidates;
    for (size_t i = 0; i < trace_.annotations.size(); ++i) {
      const Annotation& a = trace_.annotations[i];
      if (a.on_gpu && a.duration > 0 && a.stream && trace_.streams[index(*a.stream)].device == out_.device)
        candidates.push_back(i);
    }
    const auto markers = choose_markers(candidates, 0.5);
    for (const size_t i : markers) {
      const Annotation& a = trace_.annotations[i];
      const Range r{at_time(a.start), at_time(a.end())};
      if (r.begin < r.end) add_step(r);
    }
    return accept(StepSource::gpu_annotation, markers);
  }

  bool accept(StepSource source, const std::vector<size_t>& markers) {
    if (out_.steps.empty()) return false;
    out_.source = source;
    out_.marker = marker_class(trace_.names.text(trace_.annotations[markers.front()].name));
    return true;
  }

  /// Host markers enclose the launches, not the work: join through the correlation ids. Profiles without launches
  /// (fathom's own) have host and work on one clock.
  bool from_host_annotations() {
    std::vector<size_t> candidates;
    for (size_t i = 0; i < trace_.annotations.size(); ++i)
      if (!trace_.annotations[i].on_gpu && trace_.annotations[i].duration > 0 &&
          sounds_like_a_step(trace_.names.text(trace_.annotations[i].name)))
        candidates.push_back(i);
    const auto markers = choose_markers(candidates, 0.3);
    if (markers.empty()) return false;
    const LaunchTable launches(trace_);
    std::vector<Range> ranges(markers.size(), Range{SIZE_MAX, 0});
    for (size_t i = device_.begin; i < device_.end; ++i) {
      Ns when = event(i).start;
      if (launches.known()) {
        const auto launched = launches.start_of(event(i));
        if (!launched) continue;
        when = *launched;
      }
      const auto after = std::upper_bound(markers.begin(), markers.end(), when,
                                          [&](Ns t, size_t m) { return t < trace_.annotations[m].start; });
      if (after == markers.begin()) continue;
      const auto m = static_cast<size_t>(after - markers.begin() - 1);
      if (when >= trace_.annotations[markers[m]].end()) continue;
      ranges[m].begin = std::min(ranges[m].begin, i);
      ranges[m].end = std::max(ranges[m].end, i + 1);
    }
    for (size_t m = 0; m + 1 < ranges.size(); ++m)  // work that is launched early may run late: no event in two steps
      if (ranges[m].begin != SIZE_MAX && ranges[m + 1].begin != SIZE_MAX)
        ranges[m].end = std::min(ranges[m].end, ranges[m + 1].begin);
    for (const Range& r : ranges)
      if (r.begin < r.end) add_step(r);
    return accept(StepSource::host_annotation, markers);
  }

  /// Groups of at least eight kernels with one correlation id are graph launches.
  bool from_graphs() {
    struct Group {
      Range range;
      int64_t size = 0;
    };
    std::unordered_map<int64_t, Group> groups;
    Ns inside = 0;
    Group* last = nullptr;  // neighbours mostly belong together
    int64_t last_id = 0;
    for (size_t i = device_.begin; i < device_.end; ++i) {
      const int64_t id = event(i).correlation;
      if (!id) continue;
      if (!last || id != last_id) last = &groups.try_emplace(id, Group{{i, i}, 0}).first->second, last_id = id;
      last->range.end = i + 1;
      ++last->size;
    }
    std::vector<Range> graphs;
    int64_t largest = 0;
    for (const auto& [id, group] : groups) largest = std::max(largest, group.size);
    for (const auto& [id, group] : groups)
      if (group.size >= 8 && group.size * 2 >= largest) graphs.push_back(group.range);
    std::sort(graphs.begin(), graphs.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& g : graphs)
      for (size_t i = g.begin; i < g.end; ++i) inside += event(i).duration;
    // Graphs of single layers leave much time outside or come by the hundred: then the sequence tells more.
    if (graphs.empty() || inside * 2 < busy_) return false;
    for (const Range& g : graphs) add_step(g);
    out_.source = StepSource::graph_launch;
    out_.marker = fmt::format("graph of {}", counted(static_cast<int64_t>(largest), "kernel"));
    return true;
  }

  void from_sequence() {
    std::vector<uint32_t> names;
    std::vector<size_t> events;
    for (size_t i = device_.begin; i < device_.end; ++i)
      if (event(i).kind == WorkKind::kernel) names.push_back(static_cast<uint32_t>(event(i).name)), events.push_back(i);
    const std::vector<size_t> starts = find_cycle_starts(names);
    for (size_t k = 0; k + 1 < starts.size(); ++k) add_step({events[starts[k]], events[starts[k + 1]]});
    if (starts.size() < 2) return;
    out_.source = StepSource::sequence;
    out_.marker = display_name(trace_.names.text(NameId{names[starts.front()]}));
  }

  void statistics() {
    auto& steps = out_.steps;
    if (steps.empty()) return;
    std::vector<Ns> durations, gaps;
    std::vector<int64_t> kernels;
    Ns sum = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      durations.push_back(steps[i].duration());
      gaps.push_back(steps[i].gap_time);
      kernels.push_back(steps[i].kernels);
      sum += steps[i].duration();
      if (i > 0) out_.between += std::max<Ns>(0, steps[i].start - steps[i - 1].end);
    }
    const auto middle = [](auto& values) {
      std::sort(values.begin(), values.end());
      return values[(values.size() - 1) / 2];
    };
    out_.median = middle(durations);
    out_.min = durations.front(), out_.max = durations.back();
    out_.p95 = durations[(durations.size() * 95 + 99) / 100 - 1];
    out_.mean = sum / static_cast<Ns>(steps.size());
    out_.gap_time = middle(gaps);
    out_.kernels = middle(kernels);
    const auto typical =
        std::find_if(steps.begin(), steps.end(), [&](const Step& s) { return s.duration() == out_.median; });
    find_layers(*typical);
  }

  void find_layers(const Step& step) {
    std::vector<uint32_t> names;
    std::vector<size_t> events;
    for (size_t i = step.begin; i < step.finish; ++i)
      if (event(i).kind == WorkKind::kernel) names.push_back(static_cast<uint32_t>(event(i).name)), events.push_back(i);
    const Repeat repeat = find_repeat(names);
    if (repeat.count < 2) return;
    out_.layers.repeats = static_cast<int64_t>(repeat.count);
    out_.layers.kernels = static_cast<int64_t>(repeat.period);
    out_.layers.first = events[repeat.begin];
    const size_t last = std::min(repeat.begin + repeat.count * repeat.period, events.size()) - 1;
    out_.layers.mean = (event(events[last]).end() - event(events[repeat.begin]).start) / static_cast<Ns>(repeat.count);
  }

  const Trace& trace_;
  StepAnalysis out_;
  Range device_;
  Ns busy_ = 0;
};

}  // namespace

StepAnalysis find_steps(const Trace& trace, const Summary& summary) {
  return StepFinder(trace, summary).run();
}

std::string steps_sentence(const StepAnalysis& s) {
  if (s.steps.empty()) return "";
  const char* sources[] = {"", "annotations on the GPU", "annotations of the host", "graph launches",
                           "the repeating kernel sequence"};
  std::string out = fmt::format("{} (by {}, {}): ", counted(static_cast<int64_t>(s.steps.size()), "step"),
                                sources[static_cast<size_t>(s.source)], fit(printable(s.marker, 200), 50));
  if (s.steps.size() == 1) {
    out += fmt::format("{}, ", time_text(s.median));
  } else {
    out += fmt::format("median {}, min {}, p95 {}, max {}, ", time_text(s.median), time_text(s.min), time_text(s.p95),
                       time_text(s.max));
  }
  out += fmt::format("{} and {} of gaps in a step", counted(s.kernels, "kernel"), time_text(s.gap_time));
  if (s.steps.size() > 1) out += fmt::format(", {} idle between steps in all", time_text(s.between));
  if (s.layers.repeats)
    out += fmt::format("; a step repeats {} {} (layers), {} each", counted(s.layers.kernels, "kernel"),
                       counted(s.layers.repeats, "time"), time_text(s.layers.mean));
  return out + ".";
}

}  // namespace fathom::trace
