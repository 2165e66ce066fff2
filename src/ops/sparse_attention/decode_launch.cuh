// What the launches of all decode kernels share.
#pragma once

#include <cuda_runtime.h>

#include <bit>

#include "ops/sparse_attention/decode_params.h"
#include "ops/sparse_attention/decode_plan.h"

namespace fathom::ops::sparse_decode {

/// Blocks an SM that an instance is compiled for. Only sm_90 has shared memory for two; elsewhere the registers that
/// two would leave are too few.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1000)
template <typename G>
inline constexpr int kResident = 1;
#else
template <typename G>
inline constexpr int kResident = G::kBlocksPerSm;
#endif

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) launch_failed(what, cudaGetErrorString(code));
}

/// Launches `kernel` over (splits, groups of `block_heads` heads, tokens).
inline void launch(void (*kernel)(Params), const Params& p, const Plan& plan, int block_heads, int threads,
                   int shared_bytes, int tokens, void* stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "shared memory");
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.splits, (p.heads + block_heads - 1) / block_heads, tokens);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (plan.overlap) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (plan.cluster > 0) {
    if (plan.cluster > 8)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cluster size");
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = plan.cluster, a.val.clusterDim.y = a.val.clusterDim.z = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

}  // namespace fathom::ops::sparse_decode
