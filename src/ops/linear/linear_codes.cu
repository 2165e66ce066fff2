// linear_fp8 by the streaming product kernel for codes as they are: sm_90a alone.
#include "ops/linear/codes_kernel.cuh"
#include "ops/linear/stream_launch.cuh"

namespace fathom::ops::stream {
namespace {

template <int kTiles>
__global__ void __launch_bounds__(codes_threads(kTiles), 2)
    linear_codes(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) codes_block<kTiles>(p, maps, shared);
}

}  // namespace

void launch_codes(const Params& p, const Maps& maps, const Plan& plan, void* stream) {
  with_tiles(plan, [&]<int kTiles>() {
    launch_tiles("linear_fp8", linear_codes<kTiles>, plan, codes_threads(kTiles), stream, p, maps);
  });
}

}  // namespace fathom::ops::stream
