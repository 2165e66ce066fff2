// Which host call launched a piece of GPU work. Both carry a correlation id; the ranks of a merged file count theirs
// alike, so a call and its work also belong to the same process label.
#pragma once

#include <optional>
#include <vector>

#include "trace/model.h"

namespace fathom::trace {

class LaunchTable {
 public:
  explicit LaunchTable(const Trace& trace);

  /// False for files that record no launches at all.
  bool known() const { return !launches_.empty(); }
  /// Start of the call that launched the event; nothing when it is not recorded.
  std::optional<Ns> start_of(const GpuEvent& event) const;

 private:
  struct Launch {
    uint32_t label = 0;
    int64_t correlation = 0;
    Ns start = 0;
  };
  const Trace& trace_;
  std::vector<Launch> launches_;  // by label, correlation, start
};

/// Fills ImportReport::launches_without_work and work_without_launch.
void match_launches(Trace& trace);

}  // namespace fathom::trace
