#include "ops/device/launch.cuh"
#include "ops/experts/moe_prepare.cuh"

namespace fathom::ops::moe {
namespace {

__global__ void __launch_bounds__(kPrepareThreads, 2) experts_prepare(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  prepare_block(p, shared);
}

}  // namespace

void launch_prepare(const Params& p, const Plan& plan, bool early, void* stream) {
  device::launch("experts", experts_prepare,
                 {dim3(static_cast<unsigned>(p.tokens) + 1), kPrepareThreads, plan.prepare_shared, early}, stream, p);
}

}  // namespace fathom::ops::moe
