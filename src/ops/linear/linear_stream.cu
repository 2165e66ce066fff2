// linear_fp8 by the streaming product kernel: sm_90a alone.
#include "ops/linear/stream_kernel.cuh"
#include "ops/linear/stream_launch.cuh"

namespace fathom::ops::stream {
namespace {

template <int kTiles>
__global__ void __launch_bounds__(threads(kTiles), 2)
    linear_stream(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) linear_block<kTiles>(p, maps, shared);
}

}  // namespace

void launch_linear(const Params& p, const Maps& maps, const Plan& plan, void* stream) {
  with_tiles(plan, [&]<int kTiles>() {
    launch_tiles("linear_fp8", linear_stream<kTiles>, plan, threads(kTiles), stream, p, maps);
  });
}

}  // namespace fathom::ops::stream
