// Repetition in a sequence of kernel names: layers inside a step, steps inside a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom::trace {

/// `count` repeats of `period` names from `begin` on; count 0 when nothing repeats.
struct Repeat {
  size_t begin = 0, period = 0, count = 0;
};

/// The repeat that explains most of the sequence. Small deviations inside repeats are tolerated (one name in ten).
Repeat find_repeat(const std::vector<uint32_t>& names);

/// Starts of the cycles when the sequence as a whole is a few to many repeats of a long cycle (decode steps), in
/// order; the last entry ends the last whole cycle. Empty when there is no such cycle.
std::vector<size_t> find_cycle_starts(const std::vector<uint32_t>& names);

}  // namespace fathom::trace
