// Launches of the kernel for few rows a block.
#include "ops/sparse_attention/decode_burst.cuh"
#include "ops/sparse_attention/decode_launch.cuh"

namespace fathom::ops::sparse_decode {
namespace {

template <typename G>
__global__ void __launch_bounds__(kThreads, kResident<G>) decode_burst(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  burst_block<G>(p, shared);
}

template <typename G>
void launch(const Params& p, const Plan& plan, int tokens, void* stream) {
  launch(decode_burst<G>, p, plan, G::kHeads, kThreads, G::kSharedBytes, tokens, stream);
}

}  // namespace

// What the plan gives to GPUs with 99 KB of shared memory a block; 64 heads with 5 tiles are for larger ones.
static_assert(Burst<1, 1, 5, 0>::kSharedBytes <= kPortableSharedBytes &&
              Burst<2, 1, 3, 0>::kSharedBytes <= kPortableSharedBytes &&
              Burst<2, 2, 5, 0>::kSharedBytes <= kPortableSharedBytes &&
              Burst<4, 2, 3, 0>::kSharedBytes <= kPortableSharedBytes);

void launch_burst(const Params& p, const Plan& plan, int tokens, void* stream) {
  const bool five = plan.burst > 3;
  if (plan.block_heads == 64)
    five ? launch<Burst<4, 2, 5, 0>>(p, plan, tokens, stream) : launch<Burst<4, 2, 3, 0>>(p, plan, tokens, stream);
  else if (plan.block_heads == 32)
    five ? launch<Burst<2, 2, 5, 0>>(p, plan, tokens, stream) : launch<Burst<2, 1, 3, 0>>(p, plan, tokens, stream);
  else if (plan.burst <= 2)
    launch<Burst<1, 1, 2, 0>>(p, plan, tokens, stream);
  else
    five ? launch<Burst<1, 1, 5, 0>>(p, plan, tokens, stream) : launch<Burst<1, 1, 3, 0>>(p, plan, tokens, stream);
}

}  // namespace fathom::ops::sparse_decode
