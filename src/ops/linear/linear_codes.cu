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
  const auto kernel = plan.tiles == 1   ? linear_codes<1>
                      : plan.tiles == 2 ? linear_codes<2>
                      : plan.tiles == 4 ? linear_codes<4>
                                        : linear_codes<8>;
  launch_tiles("linear_fp8", kernel, plan, codes_threads(plan.tiles), stream, p, maps);
}

}  // namespace fathom::ops::stream
