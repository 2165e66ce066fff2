// Launch of the warpgroup kernel. Its code is real on sm_90a only; plans choose it there alone.
#include <cuda_runtime.h>

#include <bit>

#include "ops/sparse_attention/decode_plan.h"
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
  constexpr int kBytes = wide::Layout::kSharedBytes;
  cudaError_t code = cudaFuncSetAttribute(decode_wide, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (code != cudaSuccess) launch_failed("shared memory", cudaGetErrorString(code));
  cudaLaunchAttribute attribute;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.splits, (params.heads + wide::Layout::kHeads - 1) / wide::Layout::kHeads, tokens);
  config.blockDim = dim3(wide::kBlockThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  if (plan.overlap) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 1;
  }
  code = cudaLaunchKernelEx(&config, decode_wide, params);
  if (code != cudaSuccess) launch_failed("launch", cudaGetErrorString(code));
}

}  // namespace fathom::ops::sparse_decode
