// Launches of the expert kernels whose warpgroups stream: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_teams.cuh"

namespace fathom::ops::moe {
namespace {

template <int kTiles>
__global__ void __launch_bounds__(kTeamThreads, 1)
    experts_teams_up(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) team_up<kTiles>(p, maps, shared);
}

template <int kTiles>
__global__ void __launch_bounds__(kTeamThreads, 1)
    experts_teams_down(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) team_down<kTiles>(p, maps, shared);
}

template <int kTiles>
void launch_tiles(const Params& p, const Plan& plan, void* stream) {
  const device::LaunchShape shape = {dim3(static_cast<unsigned>(plan.stream_blocks)), kTeamThreads,
                                     team_shared(8 * kTiles), true};
  const Maps maps = describe_weights(p, device::describe_planes, kBlock);
  device::launch("experts", experts_teams_up<kTiles>, shape, stream, p, maps);
  device::launch("experts", experts_teams_down<kTiles>, shape, stream, p, maps);
  launch_sum(p, stream);
}

}  // namespace

void launch_teams(const Params& p, const Plan& plan, void* stream) {
  if (plan.team_tokens == 8)
    launch_tiles<1>(p, plan, stream);
  else
    launch_tiles<2>(p, plan, stream);
}

}  // namespace fathom::ops::moe
