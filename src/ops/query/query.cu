#include "ops/device/launch.cuh"
#include "ops/query/query_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32 * query::kWarps) query_heads(const __grid_constant__ QueryArgs a) {
  query::query_block(a, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}

}  // namespace

void query_sm80(const QueryArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.q.size[1], query::kWarps), static_cast<unsigned>(a.q.size[0]));
  device::launch("query", query_heads, {grid, 32 * query::kWarps, 0, l.device.compute_capability >= 90, true}, l.stream,
                 a);
}

}  // namespace fathom::ops
