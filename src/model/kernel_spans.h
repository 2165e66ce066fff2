// Kernels of a trace given to the ops that launched them.
#pragma once

#include <memory>
#include <vector>

#include "model/block_ops.h"
#include "ops/kernel_trace.h"

namespace fathom {

/// A step that was replayed while kernels were traced: its ops in order.
struct TracedStep {
  std::shared_ptr<const std::vector<OpMark>> ops;
  int32_t step = 0;
};

/// The spans of `runs`, kernels named after their ops, with the ops' bytes on the first kernel of each. Kernels of
/// replayed steps that do not have as many as their ops launched keep the names of their functions. Each GPU of several
/// replays every step. Kernels outside of replays belong to the op of `ops` (spans of the host) in whose time they were
/// launched by its thread; those launched at another time or by another thread, as for another GPU, to the one op that
/// launched their function elsewhere, if there is one.
std::vector<DeviceSpan> name_kernels(std::vector<ops::KernelRun> runs, const std::vector<TracedStep>& steps,
                                     std::vector<SpanRecord> ops = {});

}  // namespace fathom
