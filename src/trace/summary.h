// Total and busy time. Total is the sum of durations (what the work cost); busy is the length of the union of their
// intervals (how long the GPU did anything). They differ when streams overlap, so both are kept and labelled.
#pragma once

#include <string>
#include <vector>

#include "trace/model.h"

namespace fathom::trace {

/// A stretch in which no work ran on the device.
struct Hole {
  Ns start = 0, duration = 0;
  size_t before = 0, after = 0;  // indices in Trace::events: the work that ended last before it, the first after it
};

struct StreamSummary {
  StreamId stream{};
  int64_t events = 0;
  Ns total = 0, busy = 0;
  Ns overlap = 0;           // time in which work of this stream overlaps other work of it (total - busy)
  int64_t overlapping = 0;  // events that start before an earlier one of the stream has ended
  int64_t implausible = 0;  // of these, the ones overrun too far for dependent launch: a clock defect before them
  Ns implausible_time = 0;
};

/// Work between two large holes. Idle shares are given for windows, because one hole can swallow the figure.
struct Window {
  Ns start = 0, end = 0, busy = 0;
  int64_t events = 0;
};

struct DeviceSummary {
  DeviceId device{};
  int64_t events = 0, kernels = 0;
  Ns total = 0, kernel_total = 0;
  Ns busy = 0;
  Ns first = 0, last = 0;  // earliest start, latest end
  int64_t hole_count = 0;
  std::vector<Hole> holes;      // the largest, longest first
  std::vector<Window> windows;  // in time order; one when there is no dominating hole
  std::vector<StreamSummary> streams;
  std::vector<size_t> defects;  // events whose durations cannot be real: they overrun later work of their stream

  Ns span() const { return last - first; }
  Ns idle() const { return span() - busy; }
};

struct Summary {
  std::vector<DeviceSummary> devices;
  int64_t events = 0, kernels = 0;
  Ns total = 0, kernel_total = 0;
  Ns busy = 0;  // summed over devices
  Ns span = 0;  // summed over devices
};

struct SummaryOptions {
  size_t holes_kept = 10;
  /// A hole splits windows when it is longer than this share of the device's span and than `split_least`.
  double split_share = 0.10;
  Ns split_least = 1'000'000;
};

Summary summarise(const Trace& trace, const SummaryOptions& options = {});

}  // namespace fathom::trace
