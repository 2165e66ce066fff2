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
  const auto kernel = plan.tiles == 1   ? linear_stream<1>
                      : plan.tiles == 2 ? linear_stream<2>
                      : plan.tiles == 4 ? linear_stream<4>
                                        : linear_stream<8>;
  launch_tiles("linear_fp8", kernel, plan, threads(plan.tiles), stream, p, maps);
}

}  // namespace fathom::ops::stream
