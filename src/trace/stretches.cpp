#include "trace/stretches.h"

#include <algorithm>
#include <limits>
#include <map>

#include "trace/launches.h"

namespace fathom::trace {
namespace {

constexpr Ns small_kernel = 50'000;  // glue longer than this is bound by its own bytes, not by being separate
constexpr Ns run_break = 20'000;     // a gap that ends a run

class Walker {
 public:
  Walker(const Trace& trace, const Ranking& ranking, const CategoryTable& categories, const StepAnalysis& steps)
      : trace_(trace),
        steps_(steps),
        launches_(trace),
        category_of_(trace.names.size(), SIZE_MAX),
        shortest_(trace.names.size(), 0) {
    for (size_t i = 0; i < categories.categories.size(); ++i)
      if (categories.categories[i].id == "communication") communication_ = i;
    for (const Category& c : categories.categories) glue_.push_back(c.glue);
    for (const KernelRow& r : ranking.rows) {
      if (r.kind != WorkKind::kernel) continue;
      category_of_[index(r.name)] = r.category;
      shortest_[index(r.name)] = r.min;
    }
  }

  Stretches run() {
    out_.launches_known = launches_.known();
    for (size_t begin = 0; begin < trace_.events.size();) {
      size_t end = begin;
      const DeviceId device = trace_.device_of(trace_.events[begin]);
      while (end < trace_.events.size() && trace_.device_of(trace_.events[end]) == device) ++end;
      gaps(begin, end, device);
      work(begin, end);
      exposed(begin, end);
      begin = end;
    }
    return out_;
  }

 private:
  bool is_communication(const GpuEvent& e) const {
    return e.kind == WorkKind::kernel && category_of_[index(e.name)] == communication_;
  }
  bool is_glue(const GpuEvent& e) const {
    return e.kind == WorkKind::kernel && e.duration < small_kernel && category_of_[index(e.name)] != SIZE_MAX &&
           glue_[category_of_[index(e.name)]];
  }

  void gaps(size_t begin, size_t end, DeviceId device) {
    const bool by_steps = !steps_.steps.empty() && device == steps_.device;
    size_t step = 0;
    Ns reach = std::numeric_limits<Ns>::min();
    for (size_t i = begin; i < end; ++i) {
      const GpuEvent& e = trace_.events[i];
      if (e.duration == 0) continue;
      if (reach != std::numeric_limits<Ns>::min() && e.start > reach) {
        const Ns gap = e.start - reach;
        while (by_steps && step < steps_.steps.size() && steps_.steps[step].finish <= i) ++step;
        const bool inside =
            by_steps ? step < steps_.steps.size() && i > steps_.steps[step].begin && i < steps_.steps[step].finish
                     : gap < 1'000'000;
        if (inside) {
          ++out_.gaps;
          out_.gap_time += gap;
          if (const auto launched = launches_.start_of(e); launched && *launched > reach)
            ++out_.launch_gaps, out_.launch_gap_time += gap;
        }
      }
      reach = std::max(reach, e.end());
    }
  }

  /// Runs of glue on each stream, waiting inside communication, copies.
  void work(size_t begin, size_t end) {
    struct Run {
      int64_t kernels = 0;
      Ns start = 0, reach = 0, longest = 0;
    };
    std::map<size_t, Run> runs;
    const auto finish = [&](Run& run) {
      if (run.kernels >= 2) {
        ++out_.glue.runs;
        out_.glue.kernels += run.kernels;
        out_.glue.longest = std::max(out_.glue.longest, run.kernels);
        out_.glue.time += run.reach - run.start;
        out_.glue.saving += run.reach - run.start - run.longest;
      }
      run = {};
    };
    for (size_t i = begin; i < end; ++i) {
      const GpuEvent& e = trace_.events[i];
      Run& run = runs[index(e.stream)];
      if (!is_glue(e)) {
        finish(run);
      } else {
        if (run.kernels && e.start - run.reach > run_break) finish(run);
        if (run.kernels == 0) run.start = e.start, run.reach = e.start;
        ++run.kernels;
        run.reach = std::max(run.reach, e.end());
        run.longest = std::max(run.longest, e.duration);
      }
      if (is_communication(e)) {
        out_.communication.total += e.duration;
        out_.communication.waiting += e.duration - shortest_[index(e.name)];
      }
      if (e.kind != WorkKind::kernel) {
        ++out_.copies.count;
        out_.copies.time += e.duration;
        out_.copies.pageable |= trace_.name(e).find("Pageable") != std::string_view::npos;
      }
    }
    for (auto& [stream, run] : runs) finish(run);
  }

  /// Busy time with communication minus busy time without it.
  void exposed(size_t begin, size_t end) {
    Ns all = 0, other = 0, reach_all = std::numeric_limits<Ns>::min(), reach_other = reach_all;
    for (size_t i = begin; i < end; ++i) {
      const GpuEvent& e = trace_.events[i];
      all += std::max<Ns>(0, e.end() - std::max(reach_all, e.start));
      reach_all = std::max(reach_all, e.end());
      if (is_communication(e)) continue;
      other += std::max<Ns>(0, e.end() - std::max(reach_other, e.start));
      reach_other = std::max(reach_other, e.end());
    }
    out_.communication.exposed += all - other;
  }

  const Trace& trace_;
  const StepAnalysis& steps_;
  LaunchTable launches_;
  std::vector<size_t> category_of_;
  std::vector<Ns> shortest_;
  std::vector<bool> glue_;
  size_t communication_ = SIZE_MAX;
  Stretches out_;
};

}  // namespace

Stretches find_stretches(const Trace& trace, const Ranking& ranking, const CategoryTable& categories,
                         const StepAnalysis& steps) {
  return Walker(trace, ranking, categories, steps).run();
}

}  // namespace fathom::trace
