// Two traces of the same work, before and after: what grew, shrank, came and went. Absolute change stands beside the
// change of share, because the share of an unchanged kernel rises when others shrink.
#pragma once

#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

enum class Change : uint8_t { both, renamed, added, gone };

struct DiffRow {
  std::string name, old_name;  // old_name differs when renamed
  WorkKind kind = WorkKind::kernel;
  std::string category;
  Change change = Change::both;
  Ns before = 0, after = 0;  // a step when per_step, else in all
  int64_t calls_before = 0, calls_after = 0;
  double share_before = 0, share_after = 0;

  Ns delta() const { return after - before; }
};

struct Measure {
  std::string name;
  Ns before = 0, after = 0;
};

struct TraceDiff {
  bool per_step = false;  // both traces have steps, in different numbers: figures are for one step
  double scale_before = 1, scale_after = 1;
  std::vector<Measure> measures;  // step time, total, busy, span, idle
  std::vector<DiffRow> rows;      // by absolute change, largest first
  std::vector<DiffRow> categories;
  std::string headline;
};

TraceDiff compare(const Analysis& before, const Analysis& after);

std::string diff_text(const TraceDiff& diff, const Analysis& before, const Analysis& after, size_t width, size_t top);
std::string diff_markdown(const TraceDiff& diff, const Analysis& before, const Analysis& after);

}  // namespace fathom::trace
