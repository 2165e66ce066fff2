// Launch of the warpgroup kernel. Its code is real on sm_90a only; plans choose it there alone.
#include "ops/sparse_attention/decode_launch.cuh"
#include "ops/sparse_attention/decode_wide.cuh"

namespace fathom::ops::sparse_decode {
namespace {

__global__ void __launch_bounds__(wide::kBlockThreads, 1) decode_wide(const __grid_constant__ Params p) {
#ifdef FATHOM_WGMMA
  extern __shared__ __align__(1024) std::byte shared[];
  wide::wide_block(p, shared);
#endif
}

}  // namespace

void launch_wide(const Params& params, const Plan& plan, int tokens, void* stream) {
  launch(decode_wide, params, plan, wide::Layout::kHeads, wide::kBlockThreads, wide::Layout::kSharedBytes, tokens,
         stream);
}

}  // namespace fathom::ops::sparse_decode
