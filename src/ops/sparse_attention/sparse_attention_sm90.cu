// Launches of the warpgroup kernels. Their code is real on sm_90a only; plans choose them there alone.
#include "ops/sparse_attention/decode_launch.cuh"
#include "ops/sparse_attention/decode_wide.cuh"
#include "ops/sparse_attention/decode_wide_burst.cuh"

namespace fathom::ops::sparse_decode {
namespace {

__global__ void __launch_bounds__(wide::kBlockThreads, 1) decode_wide(const __grid_constant__ Params p) {
#ifdef FATHOM_WGMMA
  extern __shared__ __align__(1024) std::byte shared[];
  wide::wide_block(p, shared);
#endif
}

template <typename L>
__global__ void __launch_bounds__(kThreads, 1) decode_wide_burst(const __grid_constant__ Params p) {
#ifdef FATHOM_WGMMA
  extern __shared__ __align__(1024) std::byte shared[];
  wide::wide_burst_block<L>(p, shared);
#endif
}

template <int kTiles>
void launch_tiles(const Params& p, const Plan& plan, int tokens, void* stream) {
  using L = wide::BurstLayout<kTiles>;
  launch(decode_wide_burst<L>, p, plan, L::kHeads, kThreads, L::kSharedBytes, tokens, stream);
}

}  // namespace

void launch_wide_burst(const Params& p, const Plan& plan, int tokens, void* stream) {
  if (plan.burst <= 2)
    launch_tiles<2>(p, plan, tokens, stream);
  else if (plan.burst <= 3)
    launch_tiles<3>(p, plan, tokens, stream);
  else
    launch_tiles<5>(p, plan, tokens, stream);
}

void launch_wide(const Params& params, const Plan& plan, int tokens, void* stream) {
  launch(decode_wide, params, plan, wide::Layout::kHeads, wide::kBlockThreads, wide::Layout::kSharedBytes, tokens,
         stream);
}

}  // namespace fathom::ops::sparse_decode
