// The diagnosis: what costs time, the evidence, and the most that fixing it can give.
//
// Gains are ceilings of different kinds: `gain` is what a reasonable fix is estimated to save, `ceiling` what is saved
// if the cause vanished altogether. Both are times out of `base` (the busy time of the devices plus the idle time
// inside steps), so base / (base - ceiling) is the speed-up nobody can exceed by this fix alone. Findings overlap:
// their gains must not be added.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trace/categories.h"
#include "trace/floors.h"
#include "trace/model.h"
#include "trace/ranking.h"
#include "trace/steps.h"
#include "trace/summary.h"

namespace fathom::trace {

struct Finding {
  std::string id;            // "few_blocks", "kv_reread", "simt_gemm", "glue", "launch_bound", "communication", ...
  std::string title;         // one sentence with the numbers that matter
  std::string evidence;      // how it is known
  std::string advice;        // what to do about it
  Ns gain = 0;               // estimated saving
  Ns ceiling = 0;            // the most it can save
  std::vector<size_t> rows;  // rows of the ranking it speaks of
};

struct Diagnosis {
  Ns base = 0;                    // what gains are measured against
  std::vector<Finding> findings;  // by gain, largest first
  // Amdahl: the speed-up if the work took no time at all, for each row of the ranking and of the table of categories.
  std::vector<double> row_speedup, category_speedup;
  double unknown_launches = 0;  // share of kernel time without a recorded grid: nothing is said about its blocks

  double speedup(Ns saved) const;
};

/// What the caller knows beyond the trace.
struct Goal {
  double tokens_per_second = 0;   // of all sequences together; 0: none
  int64_t batch = 1;              // sequences that a step decodes
  bool v4_flash = false;          // the model is DeepSeek-V4-Flash: floors of its calls are known
  std::optional<GpuFigures> gpu;  // for floors; else the GPU that the file names
};

Diagnosis diagnose(const Trace& trace, const Summary& summary, const Ranking& ranking, const CategoryTable& categories,
                   const StepAnalysis& steps, const Goal& goal = {});

}  // namespace fathom::trace
