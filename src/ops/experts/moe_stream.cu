// Launches of the expert kernels whose warps stream: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_stream.cuh"

namespace fathom::ops::moe {
namespace {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
inline constexpr bool kStreams = false;
#else
inline constexpr bool kStreams = true;
#endif

__global__ void __launch_bounds__(32 * kStreamWarps, 1) experts_stream_up(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  if constexpr (kStreams) stream_up<ExpertFormat::mxfp4>(p, shared);
}

__global__ void __launch_bounds__(32 * kStreamWarps, 1) experts_stream_down(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  if constexpr (kStreams) stream_down<ExpertFormat::mxfp4>(p, shared);
}

}  // namespace

void launch_stream_mxfp4(const Params& p, const Plan& plan, void* stream) {
  const device::LaunchShape shape = {dim3(static_cast<unsigned>(plan.stream_blocks)), 32 * kStreamWarps,
                                     kStreamWarps * kStreamRing, true};
  device::launch("experts", experts_stream_up, shape, stream, p);
  device::launch("experts", experts_stream_down, shape, stream, p);
}

}  // namespace fathom::ops::moe
