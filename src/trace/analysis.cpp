#include "trace/analysis.h"

namespace fathom::trace {

Analysis analyse(const Trace& trace, const CategoryRules& rules, const Goal& goal) {
  Analysis out;
  out.trace = &trace;
  out.summary = summarise(trace);
  out.ranking = rank_kernels(trace);
  out.categories = categorise(trace, out.ranking, rules);
  out.steps = find_steps(trace, out.summary);
  out.diagnosis = diagnose(trace, out.summary, out.ranking, out.categories, out.steps, goal);
  return out;
}

}  // namespace fathom::trace
