// The table that everybody asks for first: which kernels took the time.
#pragma once

#include <span>
#include <vector>

#include "trace/model.h"

namespace fathom::trace {

struct KernelRow {
  NameId name{};
  WorkKind kind = WorkKind::kernel;
  int64_t calls = 0;
  Ns total = 0, min = 0, max = 0;
  Ns p50 = 0, p95 = 0;      // nearest rank
  double share = 0;         // of the summed time of all GPU work
  double kernel_share = 0;  // of the summed time of kernels; 0 for copies and fills
  ShapeId shape{};          // the launch shape that took most time
  int64_t shapes = 0;       // distinct launch shapes
  size_t category = 0;      // index in CategoryRules::categories, set by categorise()
  double ceiling = 1;       // speed-up of the whole if this work took no time, set by analyse()

  double mean() const { return calls ? static_cast<double>(total) / static_cast<double>(calls) : 0; }
};

/// Rows by total time, longest first; equal totals by name.
struct Ranking {
  std::vector<KernelRow> rows;
};

/// One row for each name and kind. Names of different kinds never merge. `left_out`: indices of events that do not
/// count, ascending.
Ranking rank_kernels(const Trace& trace, std::span<const size_t> left_out = {});

}  // namespace fathom::trace
