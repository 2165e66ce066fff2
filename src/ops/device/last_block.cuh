// Work that the last block of a launch to get there does for all.
#pragma once

#include "ops/device/scalars.cuh"

namespace fathom::ops::device {

/// Whether this is the last of `expected` blocks to come here; what they wrote is then visible to all its threads (read
/// it with load_l2). `arrivals` is 0 before and after. `flag`: shared memory that nobody uses any more.
FATHOM_DEVICE bool last_block(uint32_t* arrivals, uint32_t expected, uint32_t* flag) {
  sync_block();
  if (thread_index() == 0) {
    fence();
    *flag = atomic_add(arrivals, 1u) + 1 == expected;
    if (*flag) *arrivals = 0;
    fence();
  }
  sync_block();
  return *flag != 0;
}

}  // namespace fathom::ops::device
