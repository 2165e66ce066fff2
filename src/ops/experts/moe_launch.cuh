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
inline constexpr int kSmallBlocks = 3, kFewestTokensBlocks = 2;
inline constexpr bool kHasEightTiles = false;  // of mxfp4: plans for other GPUs than sm_90 have 6 at most
#else
inline constexpr int kSmallBlocks = 4, kFewestTokensBlocks = 4;
inline constexpr bool kHasEightTiles = true;
#endif
constexpr int resident_blocks(ExpertFormat format, int tiles) {
  return tiles > 2 ? 1 : tiles == 1 && format == ExpertFormat::mxfp4 ? kFewestTokensBlocks : kSmallBlocks;
}
/// Whether an instance is real on this architecture.
constexpr bool is_real(ExpertFormat format, int tiles) {
  return kHasEightTiles || format != ExpertFormat::mxfp4 || tiles != 8;
}

template <ExpertFormat kFormat, int kTiles>
__global__ void __launch_bounds__(most_threads(kTiles), resident_blocks(kFormat, kTiles))
    experts_up(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  if constexpr (is_real(kFormat, kTiles)) up_block<kFormat, kTiles>(p, shared);
}

template <ExpertFormat kFormat, int kTiles>
__global__ void __launch_bounds__(most_threads(kTiles), resident_blocks(kFormat, kTiles))
    experts_down(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  if constexpr (is_real(kFormat, kTiles)) down_block<kFormat, kTiles>(p, shared);
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
  if constexpr (kFormat == ExpertFormat::mxfp4) {
    if (plan.few) return launch_few_mxfp4(p, plan, stream);
  }
  launch_prepare(p, plan, early, stream);
  if constexpr (kFormat == ExpertFormat::mxfp4) {
    if (plan.teams) return launch_teams(p, plan, stream);
    if (plan.stream_blocks > 0) return launch_stream_mxfp4(p, plan, stream);
    if (plan.many_blocks > 0) return launch_many_mxfp4(p, plan, stream);
  }
  switch (plan.tiles) {
    case 1:
      return launch_instance<kFormat, 1>(p, plan, early, stream);
    case 2:
      return launch_instance<kFormat, 2>(p, plan, early, stream);
    case 6:
      if constexpr (kFormat != ExpertFormat::fp8) return launch_instance<kFormat, 6>(p, plan, early, stream);
      break;
    default:
      if constexpr (kFormat != ExpertFormat::nvfp4) return launch_instance<kFormat, 8>(p, plan, early, stream);
  }
}

}  // namespace fathom::ops::moe
