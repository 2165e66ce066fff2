#include "ops/device/launch.cuh"
#include "ops/route/route_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32) choose_experts(const __grid_constant__ RouteArgs a) {
  route::route_block(a);
}

}  // namespace

void launch_choose_experts(const RouteArgs& a, const Launch& l) {
  device::launch("route", choose_experts,
                 {dim3(static_cast<unsigned>(a.x.size[0])), 32, 0, l.device.compute_capability >= 90}, l.stream, a);
}

}  // namespace fathom::ops
