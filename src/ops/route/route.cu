#include "ops/device/launch.cuh"
#include "ops/route/few_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(route::kThreads) choose_experts(const __grid_constant__ RouteArgs a) {
  __shared__ route::Shared shared;
  route::route_block(a, shared);
}

__global__ void __launch_bounds__(route::kThreads) route_few(const __grid_constant__ route::FewParams p) {
  extern __shared__ __align__(1024) std::byte shared[];
  route::few_block(p, shared);
}

}  // namespace

void launch_choose_experts(const RouteArgs& a, const Launch& l) {
  const auto tokens = static_cast<unsigned>(a.x.size[0]);
  device::launch("route", choose_experts, {dim3(tokens), route::kThreads, 0, l.device.compute_capability >= 90, true},
                 l.stream, a);
}

bool launch_route_few(const RouteArgs& a, const Launch& l) {
  route::FewParams p;
  gemm::Plan plan;
  if (!route::lay_out(a, l.device, p, plan)) return false;
  p.arrivals = static_cast<uint32_t*>(l.workspace);
  const auto cluster = static_cast<unsigned>(plan.cluster);
  const size_t bytes = plan.shared_bytes > sizeof(route::Shared) ? plan.shared_bytes : sizeof(route::Shared);
  device::launch("route", route_few, {dim3(cluster, p.blocks / cluster), route::kThreads, bytes, true, true, cluster},
                 l.stream, p);
  return true;
}

}  // namespace fathom::ops
