// Launches of the expert kernels whose warps stream: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_stream.cuh"

namespace fathom::ops::moe {
namespace {

template <bool kGroups>
__global__ void __launch_bounds__(32 * kStreamWarps, 1)
    experts_stream_up(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) stream_up<ExpertFormat::mxfp4, kGroups>(p, maps, shared);
}

template <bool kGroups>
__global__ void __launch_bounds__(32 * kStreamWarps, 1)
    experts_stream_down(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) stream_down<ExpertFormat::mxfp4, kGroups>(p, maps, shared);
}

template <bool kGroups>
void launch_both(const Params& p, const Plan& plan, void* stream) {
  const device::LaunchShape shape = {dim3(static_cast<unsigned>(plan.stream_blocks)), 32 * kStreamWarps, kStreamShared,
                                     true};
  const Maps maps = describe_weights(p, device::describe_planes);
  device::launch("experts", experts_stream_up<kGroups>, shape, stream, p, maps);
  device::launch("experts", experts_stream_down<kGroups>, shape, stream, p, maps);
}

}  // namespace

void launch_stream_mxfp4(const Params& p, const Plan& plan, void* stream) {
  if (p.groups)
    launch_both<true>(p, plan, stream);
  else
    launch_both<false>(p, plan, stream);
}

}  // namespace fathom::ops::moe
