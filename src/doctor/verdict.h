// The verdict on a trace: where a step's time goes, in the parts that a decode step has, each beside its bound, with
// the cause and the remedy in one line.
//
// The parts divide the time from the first to the last step without overlap: work is counted once where streams
// overlap, communication only where nothing else runs (its exposed part), and what is left is idle: inside a step a
// launch gap, between steps host idle.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/bound.h"
#include "trace/analysis.h"

namespace fathom::doctor {

struct Part {
  std::string id;      // "attention", "experts", "dense", "glue", "other", "communication", "launch_gaps", "host_idle"
  std::string label;   // "attention"
  double seconds = 0;  // a step; without steps, of the whole trace
  double share = 0;    // of all parts
  double bound = -1;   // seconds a step; negative: not known
  std::string cause, remedy;
};

/// What the bound is computed for.
struct BoundQuestion {
  plan::Model model;
  plan::Devices devices;
  double batch = 1, context = 1024;
};

struct Verdict {
  std::string file, device;  // device: its name, or "CPU"
  int devices = 1;           // in the trace; the busiest is judged
  size_t steps = 0;          // judged; 0: no steps were found and the whole trace is judged
  size_t left_out = 0;       // steps over twice the median: prefill
  double seconds = 0;        // a step (from its begin to the next one's), or the whole trace
  std::vector<Part> parts;   // in the order above; those that do not occur are 0
  std::string largest;       // label of the part with the largest loss against its bound

  std::optional<plan::StepBound> bound;
  std::string bound_of;          // "v4-flash on 1 x H200, batch 16, context 8192"
  double tokens_per_second = 0;  // batch / step; with a bound
};

Verdict judge(const trace::Analysis& analysis, const std::optional<BoundQuestion>& question);

/// "one step takes 9.81 ms (58 steps); bound 1.20 ms (bytes): 12 % of it is reached; the largest loss is attention".
std::string verdict_sentence(const Verdict& v);

}  // namespace fathom::doctor
