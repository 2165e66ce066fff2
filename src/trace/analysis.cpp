#include "trace/analysis.h"

#include <algorithm>

namespace fathom::trace {

Analysis analyse(const Trace& trace, const CategoryRules& rules, const Goal& goal) {
  Analysis out;
  out.trace = &trace;
  out.summary = summarise(trace);
  out.ranking = rank_kernels(trace);
  out.categories = categorise(trace, out.ranking, rules);
  std::vector<size_t> defects;
  for (const DeviceSummary& d : out.summary.devices) defects.insert(defects.end(), d.defects.begin(), d.defects.end());
  if (!defects.empty()) {
    std::sort(defects.begin(), defects.end());
    out.plausible = rank_kernels(trace, defects);
    categorise(trace, out.plausible, rules);
  }
  out.steps = find_steps(trace, out.summary);
  out.diagnosis = diagnose(trace, out.summary, out.ranking, out.categories, out.steps, goal);
  for (size_t i = 0; i < out.ranking.rows.size(); ++i) out.ranking.rows[i].ceiling = out.diagnosis.row_speedup[i];
  return out;
}

}  // namespace fathom::trace
