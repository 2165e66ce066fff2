// Launches of the expert kernels; each .cu file holds the instances of one format of routed experts.
#pragma once

#include "ops/device/launch.cuh"
#include "ops/experts/moe_kernel.cuh"

namespace fathom::ops::moe {

/// Threads a block may have, and blocks a multiprocessor should hold: 16 warps of 128 registers, or 8 of 255.
constexpr int most_threads(int tiles) {
  return tiles > 2 ? 256 : 32 * kMaxSlices;
}
/// Other architectures than sm_90 compile to a few more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
inline constexpr int kSmallBlocks = 3;
#else
inline constexpr int kSmallBlocks = 4;
#endif
constexpr int resident_blocks(int tiles) {
  return tiles > 2 ? 1 : kSmallBlocks;
}

template <ExpertFormat kFormat, int kTiles>
__global__ void __launch_bounds__(most_threads(kTiles), resident_blocks(kTiles))
    experts_up(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  up_block<kFormat, kTiles>(p, shared);
}

template <ExpertFormat kFormat, int kTiles>
__global__ void __launch_bounds__(most_threads(kTiles), resident_blocks(kTiles))
    experts_down(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  down_block<kFormat, kTiles>(p, shared);
}

template <ExpertFormat kFormat, int kTiles>
void launch_instance(const Params& p, const Plan& plan, bool early, void* stream) {
  const auto height = static_cast<unsigned>(plan.most_tiles);
  device::launch("experts", experts_up<kFormat, kTiles>,
                 {dim3(static_cast<unsigned>(plan.up_blocks), height), plan.up_threads(), plan.up_shared, early},
                 stream, p);
  device::launch("experts", experts_down<kFormat, kTiles>,
                 {dim3(static_cast<unsigned>(plan.down_blocks), height), plan.down_threads(), plan.down_shared, early},
                 stream, p);
}

template <ExpertFormat kFormat>
void launch_format(const Params& p, const Plan& plan, bool early, void* stream) {
  launch_prepare(p, plan, early, stream);
  switch (plan.tiles) {
    case 1:
      return launch_instance<kFormat, 1>(p, plan, early, stream);
    case 2:
      return launch_instance<kFormat, 2>(p, plan, early, stream);
    default:
      return launch_instance < kFormat, kFormat == ExpertFormat::nvfp4 ? 6 : 8 > (p, plan, early, stream);
  }
}

}  // namespace fathom::ops::moe
