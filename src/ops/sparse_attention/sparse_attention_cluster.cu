// Launches of the kernel for few rows a block whose splits form a cluster (sm_90 and later).
#include "ops/sparse_attention/decode_burst.cuh"
#include "ops/sparse_attention/decode_launch.cuh"

namespace fathom::ops::sparse_decode {
namespace {

template <typename G>
__global__ void __launch_bounds__(kThreads, kResident<G>) decode_cluster(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  burst_block<G>(p, shared);
#endif
}

template <typename G>
void launch(const Params& p, const Plan& plan, int tokens, void* stream) {
  launch(decode_cluster<G>, p, plan, G::kHeads, kThreads, G::kSharedBytes, tokens, stream);
}

}  // namespace

void launch_cluster(const Params& p, const Plan& plan, int tokens, void* stream) {
  if (plan.cluster == 16)
    launch<Burst<1, 1, 3, 16>>(p, plan, tokens, stream);
  else
    launch<Burst<1, 1, 5, 8>>(p, plan, tokens, stream);
}

}  // namespace fathom::ops::sparse_decode
