// A sweep over levels of load, each warmed up and repeated, and what came of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/steady.h"
#include "bench/target.h"

namespace fathom::bench {

struct SweepOptions {
  std::vector<int64_t> levels;  // concurrencies; empty with a rate
  double rate = 0;              // requests a second, open loop
  int64_t rounds = 4;           // requests of a level: rounds x concurrency, at least `least`
  int64_t least = 8;
  int64_t requests = 0;  // of a level, in place of the above
  int64_t repeats = 1;
  bool warm_up = true;  // as many requests as the level keeps open, before each level
};

struct Level {
  double concurrency = 0, rate = 0;
  std::vector<LevelStats> repeats;
  std::optional<StepFloor> floor;
  /// The repeat with the median output rate.
  const LevelStats& median() const;
  /// Half the range of the output rates over their mean.
  double spread() const;
};

/// "16" open requests, or "2.5/s".
std::string load_text(const Level& level);

struct Sweep {
  std::string target, content;
  WorkloadOptions workload;
  std::vector<Level> levels;
  Fit fit;
  std::string started;  // date and time, UTC
  bool interrupted = false;
};

/// Throws Error when nothing can be sent.
Sweep run_sweep(Target& target, const WorkloadOptions& workload, const SweepOptions& options);

/// Lines for a terminal.
std::string text_report(const Sweep& s);
/// Sentences that a reader of the table should know: load not reached, prefill ramp, errors, loops.
std::vector<std::string> remarks(const Sweep& s);
std::string markdown_report(const Sweep& s);
/// One HTML file with plots that needs nothing else.
std::string html_report(const Sweep& s);
/// Schema "fathom-bench-1" (docs/benchmarking.md), ends with a newline.
std::string json_report(const Sweep& s);

}  // namespace fathom::bench
