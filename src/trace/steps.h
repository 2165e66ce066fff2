// Decode steps and the layers inside them.
//
// Steps come from, in this order: annotations on the GPU rows (gpu_user_annotation), annotations of the host joined
// through the launches, graph launches, or the repeating sequence of kernels. Layers are the repeats of the shortest
// kernel sequence that a step consists of. All of it is for the device with the most work.
#pragma once

#include <string>
#include <vector>

#include "trace/model.h"
#include "trace/summary.h"

namespace fathom::trace {

enum class StepSource : uint8_t { none, gpu_annotation, host_annotation, graph_launch, sequence };

struct Step {
  Ns start = 0, end = 0;         // first start to last end of its work
  size_t begin = 0, finish = 0;  // its events: [begin, finish) of Trace::events (those of the device)
  int64_t kernels = 0;
  Ns total = 0, busy = 0;
  int64_t gaps = 0;  // holes inside the step
  Ns gap_time = 0;

  Ns duration() const { return end - start; }
};

/// Repeats of one kernel sequence inside a step.
struct Layers {
  int64_t repeats = 0;  // 0: none found
  int64_t kernels = 0;  // in one repeat
  size_t first = 0;     // event where the first repeat starts
  Ns mean = 0;          // mean time of a repeat
};

struct StepAnalysis {
  StepSource source = StepSource::none;
  std::string marker;  // what marks a step, for people: the annotation or the first kernel
  DeviceId device{};
  std::vector<Step> steps;
  Ns min = 0, median = 0, p95 = 0, max = 0, mean = 0;  // of the steps' durations
  int64_t kernels = 0;                                 // a step, median
  Ns gap_time = 0;                                     // inside a step, median
  Ns between = 0;                                      // idle between steps, summed
  Layers layers;                                       // of the median step

  /// (p95 - median) / median.
  double spread() const { return median > 0 ? static_cast<double>(p95 - median) / static_cast<double>(median) : 0; }
};

StepAnalysis find_steps(const Trace& trace, const Summary& summary);

/// The sentence for people: "12 steps (graph launches): median 9.8 ms, ...". Empty when there are none.
std::string steps_sentence(const StepAnalysis& steps);

}  // namespace fathom::trace
