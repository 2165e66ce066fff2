#include "dist/communicator.h"
#include "dist/gpus.h"
#include "dist/shared_memory.h"

namespace fathom::dist {

std::vector<std::unique_ptr<Communicator>> connect(std::span<const std::shared_ptr<ops::ComputeDevice>> devices) {
  size_t host = 0;
  for (const auto& device : devices) host += device->shares_host_memory();
  if (host == devices.size()) return connect_shared_memory(static_cast<int>(devices.size()));
  if (host > 0) fail("tensor parallel: the ranks are all on the processor or all on GPUs");
#ifdef FATHOM_HAVE_CUDA
  return peers_reachable(devices) ? connect_peers(devices) : connect_nccl(devices);
#else
  fail("tensor parallel: this build cannot connect GPUs");
#endif
}

}  // namespace fathom::dist
