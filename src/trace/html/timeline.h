// What the timeline of the HTML report shows: a typical step, the slowest step, or, where no steps were found, the
// stretch of the busiest device with the most work.
#pragma once

#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

struct TimelineView {
  std::string title;  // "step 12 of 40: the median"
  DeviceId device{};
  Ns start = 0, end = 0;       // what is shown: first start to last end
  std::vector<size_t> events;  // indices in Trace::events, by start
  size_t left_out = 0;         // events of the stretch behind the limit
};

/// One or two views, none for a trace without GPU work. At most `limit` events in each: the first ones by start.
std::vector<TimelineView> timeline_views(const Analysis& analysis, size_t limit);

/// Steps to plot, as indices in StepAnalysis::steps: all of them, or, when there are more than `limit`, the shortest
/// and the longest of every limit / 2 equal stretches, so that no outlier is lost.
std::vector<size_t> step_points(const StepAnalysis& steps, size_t limit);

}  // namespace fathom::trace
