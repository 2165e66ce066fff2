// Launches of the expert kernels for few tokens: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_few_both.cuh"

namespace fathom::ops::moe {
namespace {

__global__ void __launch_bounds__(32 * kFewUpWarps, 1)
    experts_few_up(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) few_up(p, maps, shared);
}

__global__ void __launch_bounds__(32 * kFewDownWarps, 1)
    experts_few_down(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) few_down(p, maps, shared);
}

__global__ void __launch_bounds__(32 * kFewUpWarps, 1)
    experts_few_both(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) few_both(p, maps, shared);
}

}  // namespace

void launch_few_mxfp4(const Params& p, const Plan& plan, void* stream) {
  const auto shape = [](int blocks, const FewLayout& layout) {
    return device::LaunchShape{dim3(static_cast<unsigned>(blocks)), 32 * layout.warps,
                               static_cast<size_t>(layout.bytes), true};
  };
  const Maps maps = describe_weights(p, device::describe_planes);
  if (plan.both) {
    const int blocks = plan.up_blocks > plan.down_blocks ? plan.up_blocks : plan.down_blocks;
    return device::launch("experts", experts_few_both, shape(blocks, plan.few_up), stream, p, maps);
  }
  device::launch("experts", experts_few_up, shape(plan.up_blocks, plan.few_up), stream, p, maps);
  device::launch("experts", experts_few_down, shape(plan.down_blocks, plan.few_down), stream, p, maps);
}

}  // namespace fathom::ops::moe
