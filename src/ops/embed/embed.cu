#include "ops/device/launch.cuh"
#include "ops/embed/embed_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(embed::kThreads) embed_rows(const __grid_constant__ EmbedArgs a) {
  embed::embed_block(a);
}

}  // namespace

void embed_sm80(const EmbedArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.streams.size[2], embed::kBlockChannels), static_cast<unsigned>(a.ids.size[0]));
  device::launch("embed", embed_rows, {grid, embed::kThreads, 0, l.device.compute_capability >= 90}, l.stream, a);
}

}  // namespace fathom::ops
