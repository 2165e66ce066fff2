// Launches of the expert kernels for many tokens: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_many.cuh"

namespace fathom::ops::moe {
namespace {

template <bool kDown, int kTiles>
__global__ void __launch_bounds__(kManyThreads, 1)
    experts_many(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) many_block<kDown, kTiles>(p, maps, shared);
}

template <int kTiles>
void launch_products(const Params& p, const Plan& plan, void* stream) {
  const device::LaunchShape shape = {dim3(static_cast<unsigned>(plan.many_blocks)), kManyThreads, kManyShared, true};
  const Maps maps = describe_weights(p, device::describe_planes, kManyRows);
  device::launch("experts", experts_many<false, kTiles>, shape, stream, p, maps);
  device::launch("experts", experts_many<true, kTiles>, shape, stream, p, maps);
}

}  // namespace

void launch_many_mxfp4(const Params& p, const Plan& plan, void* stream) {
  if (plan.many_tokens > 32)
    launch_products<8>(p, plan, stream);
  else
    launch_products<4>(p, plan, stream);
  launch_sum(p, stream);
}

}  // namespace fathom::ops::moe
