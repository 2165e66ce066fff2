// linear_fp8 by the product kernel of strips, for 33 to 64 tokens: sm_90a alone.
#include "ops/device/launch.cuh"
#include "ops/linear/strips_kernel.cuh"

namespace fathom::ops::strips {
namespace {

__global__ void __launch_bounds__(kThreads, 1)
    linear_strips(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) strips_block(p, maps, shared);
}

}  // namespace

void launch_strips(const Params& p, const Maps& maps, const Plan& plan, void* stream) {
  const dim3 grid(static_cast<unsigned>(plan.slices()), 1, static_cast<unsigned>(plan.blocks));
  const device::LaunchShape shape{.grid = grid, .threads = kThreads, .shared_bytes = plan.shared_bytes, .early = true};
  device::launch("linear_fp8", linear_strips, shape, stream, p, maps);
}

}  // namespace fathom::ops::strips
