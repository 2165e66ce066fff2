// Communicators for ranks that are threads on the processor.
#pragma once

#include "dist/communicator.h"

namespace fathom::dist {

/// Each rank sums a part of the numbers, in the order of the ranks, for all.
std::vector<std::unique_ptr<Communicator>> connect_shared_memory(int size);

}  // namespace fathom::dist
