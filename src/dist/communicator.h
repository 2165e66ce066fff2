// Sums and gathers over the ranks of a tensor-parallel model. Ranks are threads of one process, each with its own
// device (or all on the processor).
//
// Every call is collective: all ranks make the same calls in the same order with the same shapes. Work goes to the
// rank's stream, like that of an op: it may be recorded in a graph, it does not allocate and does not wait for the
// stream; on the processor it is done when the call returns. Sums are made in the order of the ranks, so all ranks get
// the same bits, and the same ones every time.
//
// A rank that cannot go on calls fail(). Every other rank's calls then throw Failed instead of waiting for it, and work
// that waits on a device ends. When all ranks have stopped, reset() on each (one at a time) makes the group usable
// again.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/view.h"
#include "ops/compute_device.h"

namespace fathom::dist {

/// A collective call ended because another rank failed.
class Failed : public Error {
 public:
  using Error::Error;
};

struct Failure {
  int rank = 0;
  std::string what;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "shared memory", "peer memory", "NCCL".
  virtual const char* name() const = 0;
  /// Bytes of the rank's device that it holds.
  virtual size_t device_bytes() const { return 0; }

  /// sum [T, d] = bf16 of the sum over all ranks of part [T, d], in fp32. A bf16 part may be the same memory as sum.
  virtual void all_reduce(View<const float, 2> part, View<bf16, 2> sum) = 0;
  virtual void all_reduce(View<const bf16, 2> part, View<bf16, 2> sum) = 0;
  /// Columns [r n, (r + 1) n) of full [T, n * size] = part [T, n] of rank r, on every rank. Dense rows.
  virtual void all_gather(View<const float, 2> part, View<float, 2> full) = 0;
  /// Waits on the host until all ranks are here.
  virtual void barrier() = 0;

  /// This rank cannot go on. The first one's words stay.
  virtual void fail(const std::string& what) noexcept = 0;
  /// Who failed first; nothing when all is well. Also after the rank's stream was waited for: work that gave up.
  virtual std::optional<Failure> failure() = 0;
  /// After a failure, with all streams idle and no rank inside a call.
  virtual void reset() = 0;
};

/// One communicator for each rank; devices[r] is that of rank r: all the processor, or different GPUs. Each is used by
/// its rank's thread, to which the device is bound. Throws Error when the devices cannot work together.
std::vector<std::unique_ptr<Communicator>> connect(std::span<const std::shared_ptr<ops::ComputeDevice>> devices);

}  // namespace fathom::dist
