// Stretches of steps that a profile left out on purpose, to cost little.
#pragma once

#include "trace/model.h"

namespace fathom::trace {

/// Takes stretches that annotations of the host call "4 steps not recorded" out of the time: what lies behind them
/// moves up, so that they are neither gaps nor idle time, and a note says so. Before finish_trace().
void cut_skipped_steps(Trace& trace);

}  // namespace fathom::trace
