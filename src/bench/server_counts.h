// Steps and drafts from the metrics page of a server, in Prometheus' text form.
#pragma once

#include <string_view>

#include "bench/record.h"

namespace fathom::bench {

/// What the counters stand at; steps 0 when the page does not count them. `seconds` stays 0.
DraftCounts read_counts(std::string_view metrics);

/// From one reading to the next; steps 0 when they are not of the same server.
DraftCounts difference(const DraftCounts& before, const DraftCounts& after);

}  // namespace fathom::bench
