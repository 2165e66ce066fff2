// Launches of the expert kernels for few tokens: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_few_both.cuh"

namespace fathom::ops::moe {
namespace {

template <bool kBytes>
__global__ void __launch_bounds__(32 * kFewUpWarps, 1)
    experts_few_up(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) few_up<kBytes>(p, maps, shared);
}

template <bool kBytes>
__global__ void __launch_bounds__(32 * kFewDownWarps, 1)
    experts_few_down(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) few_down<kBytes>(p, maps, shared);
}

// All registers: the kernel behind it, two blocks of residual_mix a token, comes where no block of this one is. (On
// ranks the sum and then all of residual_mix come behind it, which has not been measured since.)
template <bool kBytes>
__global__ void __launch_bounds__(32 * kFewUpWarps, 1)
    experts_few_both(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) few_both<kBytes>(p, maps, shared);
}

template <bool kBytes>
void launch_few(const Params& p, const Plan& plan, void* stream) {
  const auto shape = [](int blocks, const FewLayout& layout) {
    return device::LaunchShape{dim3(static_cast<unsigned>(blocks)), 32 * layout.warps,
                               static_cast<size_t>(layout.bytes), true};
  };
  const Maps maps = describe_weights(p, device::describe_planes);
  if (plan.both) {
    const int blocks = plan.up_blocks > plan.down_blocks ? plan.up_blocks : plan.down_blocks;
    return device::launch("experts", experts_few_both<kBytes>, shape(blocks, plan.few_up), stream, p, maps);
  }
  device::launch("experts", experts_few_up<kBytes>, shape(plan.up_blocks, plan.few_up), stream, p, maps);
  device::launch("experts", experts_few_down<kBytes>, shape(plan.down_blocks, plan.few_down), stream, p, maps);
}

}  // namespace

void launch_few_mxfp4(const Params& p, const Plan& plan, void* stream) {
  if (p.bytes)
    launch_few<true>(p, plan, stream);
  else
    launch_few<false>(p, plan, stream);
}

}  // namespace fathom::ops::moe
