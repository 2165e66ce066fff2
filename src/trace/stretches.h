// Walking the devices in time order once, for what single kernels cannot tell: runs of glue, gaps inside steps and who
// caused them, exposed communication, copies.
#pragma once

#include <string>

#include "trace/categories.h"
#include "trace/model.h"
#include "trace/ranking.h"
#include "trace/steps.h"

namespace fathom::trace {

struct Stretches {
  // Holes between pieces of work, inside steps when there are steps, else all under a millisecond.
  int64_t gaps = 0, launch_gaps = 0;
  Ns gap_time = 0, launch_gap_time = 0;  // launch: the next launch call began after the hole did
  bool launches_known = false;

  struct Glue {
    int64_t runs = 0, kernels = 0;
    int64_t longest = 0;  // kernels in the longest run
    Ns time = 0;          // of the kernels and the gaps between them
    Ns saving = 0;        // a fused run takes as long as its longest kernel
  } glue;

  struct Communication {
    Ns total = 0;
    Ns exposed = 0;  // nothing else ran on the device
    Ns waiting = 0;  // beyond the shortest call of the same kernel
  } communication;

  struct Copies {
    int64_t count = 0;
    Ns time = 0;
    bool pageable = false;
  } copies;
};

Stretches find_stretches(const Trace& trace, const Ranking& ranking, const CategoryTable& categories,
                         const StepAnalysis& steps);

}  // namespace fathom::trace
