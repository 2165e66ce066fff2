// Launch of the kernel that adds the experts of each token.
#include "ops/device/launch.cuh"
#include "ops/experts/moe_sum.cuh"

namespace fathom::ops::moe {
namespace {

__global__ void __launch_bounds__(kSumThreads, 1024 / kSumThreads) experts_sum(const __grid_constant__ Params p) {
  sum_block(p);
}

}  // namespace

void launch_sum(const Params& p, void* stream) {
  const unsigned blocks = device::blocks_for(int64_t{p.tokens} * (p.d / 8), kSumThreads);
  device::launch("experts", experts_sum, {dim3(blocks), kSumThreads, 0, true}, stream, p);
}

}  // namespace fathom::ops::moe
