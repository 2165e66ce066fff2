// Several ranks of one run: who is slow, and who waits for whom. A rank that reaches a collective late spends little
// time in it while the others wait, so the rank with the LEAST time in collectives is the slow one.
#pragma once

#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

struct RankRow {
  std::string label;  // "rank 3", or the file when no rank is known
  std::optional<int> rank;
  Ns span = 0, busy = 0;
  Ns communication = 0;
  Ns compute = 0;    // kernels that are no communication
  Ns waiting = 0;    // in matched collectives, beyond the rank that left it soonest after arriving
  int64_t last = 0;  // matched collectives in which it arrived last
};

struct RankComparison {
  std::vector<RankRow> rows;    // sorted by rank
  int64_t collectives = 0;      // matched: the same call of the same kernel on every rank
  int64_t unmatched_names = 0;  // communication kernels whose number of calls differs between ranks
  Ns skew = 0;                  // mean over the collectives of longest minus shortest
  size_t straggler = 0;         // row that arrived last most often
  std::string headline;

  double waiting_share() const;  // of the spans of all ranks
};

/// One row for each device of each trace. Needs at least two.
RankComparison compare_ranks(const std::vector<Analysis>& analyses);

std::string ranks_text(const RankComparison& ranks, size_t width);
std::string ranks_markdown(const RankComparison& ranks);

}  // namespace fathom::trace
