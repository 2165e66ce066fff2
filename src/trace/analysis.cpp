#include "trace/analysis.h"

namespace fathom::trace {

Analysis analyse(const Trace& trace, const CategoryRules& rules) {
  Analysis out;
  out.trace = &trace;
  out.summary = summarise(trace);
  out.ranking = rank_kernels(trace);
  out.categories = categorise(trace, out.ranking, rules);
  out.steps = find_steps(trace, out.summary);
  return out;
}

}  // namespace fathom::trace
