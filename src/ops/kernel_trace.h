// What a GPU did, kernel by kernel, as CUPTI reports it: also inside replayed graphs, where no clock of the host
// reaches.
//
// CUPTI is loaded when it is first asked for; without it there is no kernel trace and everything else works. When off
// it costs nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/recorder.h"

namespace fathom::ops {

/// A DeviceSpan and what joins it to the ops.
struct KernelRun {
  DeviceSpan span;    // `name` is the function's
  uint64_t node = 0;  // inside a replayed graph: grows as the nodes were recorded; all of a replay share `correlation`
};

/// The process has one; it must not be started twice. Each call throws Error when CUPTI refuses, and no other thread
/// may be in a call of CUDA meanwhile: CUPTI enters and leaves the process.
class KernelTrace {
 public:
  virtual ~KernelTrace() = default;
  virtual void start() = 0;
  /// Between start() and stop(): work from now on is not recorded, or is again. Takes 5 and 10 ms; then the process
  /// runs as if there were no trace. The device must have finished its work.
  virtual void pause() = 0;
  virtual void resume() = 0;
  /// Ends and hands over what was recorded, ordered by start. The device must have finished its work.
  virtual std::vector<KernelRun> stop() = 0;
};

/// Null and the reason when there is none.
KernelTrace* kernel_trace(std::string& why);

}  // namespace fathom::ops
