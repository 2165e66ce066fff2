// The passes over a Trace, and the one struct that holds their results.
//
//   summary.h     total (sum) and busy (union) time, idle windows and holes, for each device and stream
//   ranking.h     kernels by total time: calls, mean, min, max, p95, shares
//   categories.h  what each kernel is for, from the rules file
//   steps.h       decode steps and layers, launch gaps inside a step, idle between steps
//   occupancy.h   blocks and warps that fit on an SM, recomputed from the launch
//   findings.h    diagnosis: evidence, estimated gain, ceiling
//   diff.h        two traces: what grew, shrank, came and went
//   ranks.h       several ranks: skew, stragglers, waiting inside collectives
//
// Every pass is a free function from const Trace& (and earlier results) to a plain struct; none keeps state.
// Writers (text_report.h, markdown_report.h, json_report.h, html_report.h) only read Analysis.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trace/categories.h"
#include "trace/findings.h"
#include "trace/model.h"
#include "trace/ranking.h"
#include "trace/steps.h"
#include "trace/summary.h"

namespace fathom::trace {

struct Analysis {
  const Trace* trace = nullptr;  // must outlive the analysis
  Summary summary;
  Ranking ranking;
  Ranking plausible;  // without the events whose durations cannot be real; no rows when there are none such
  CategoryTable categories;
  StepAnalysis steps;
  Diagnosis diagnosis;
};

Analysis analyse(const Trace& trace, const CategoryRules& rules, const Goal& goal = {});

}  // namespace fathom::trace
