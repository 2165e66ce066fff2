// The last step of every reader: sorting, ranks, and the checks that tell what is missing.
#pragma once

#include <optional>
#include <string_view>

#include "trace/model.h"

namespace fathom::trace {

/// Sorts events (device, start, longer first), calls and annotations; fills ranks and the launch counts of the import
/// report; writes notes about what the file lacks.
void finish_trace(Trace& trace);

/// The rank that a file name tells: "rank3", "rank-3", "rank_3", "worker3", "-TP-3-". Empty when it tells none.
std::optional<int> rank_of_name(std::string_view file_name);

}  // namespace fathom::trace
