// Communicators between GPUs of one process. Only in builds with CUDA.
#pragma once

#include "dist/communicator.h"

namespace fathom::dist {

/// Whether every GPU can write the memory of every other one.
bool peers_reachable(std::span<const std::shared_ptr<ops::ComputeDevice>> devices);

/// Through peer memory (peer_params.h). Throws Error when a GPU cannot reach another.
std::vector<std::unique_ptr<Communicator>> connect_peers(std::span<const std::shared_ptr<ops::ComputeDevice>> devices);

/// Through NCCL, loaded when first asked for. Throws Error when libnccl.so.2 is not there.
std::vector<std::unique_ptr<Communicator>> connect_nccl(std::span<const std::shared_ptr<ops::ComputeDevice>> devices);

}  // namespace fathom::dist
