// Launch of one instance of the product kernel; each .cu file holds the instances of one kind of product.
#pragma once

#include <cuda_runtime.h>

#include "ops/linear/gemm_wide.cuh"

namespace fathom::ops::gemm {

template <Math kMath, int kTiles>
__global__ void __launch_bounds__(32 * most_warps(kMath, kTiles), 1) small_gemm(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (is_wide(kMath))
    wide_block<kMath, kTiles>(p, shared);
  else
    gemm_block<kMath, kTiles>(p, shared);
}

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) launch_failed(what, cudaGetErrorString(code));
}

template <Math kMath, int kTiles>
void launch_instance(const Params& p, const Plan& plan, void* stream) {
  const auto kernel = small_gemm<kMath, kTiles>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.shared_bytes)),
        "shared memory");
  const auto count = [](int n, int d) { return static_cast<unsigned>((n + d - 1) / d); };
  cudaLaunchAttribute attribute[2];
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(plan.cluster), count(p.groups, plan.group_warps), count(p.tokens, plan.token_tile()));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads()));
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attribute;
  if (plan.cluster > 1) {
    attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attribute[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  }
  if (plan.early) {
    attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

template <Math kMath>
void launch_kind(const Params& p, const Plan& plan, void* stream) {
  switch (plan.tiles) {
    case 1:
      return launch_instance<kMath, 1>(p, plan, stream);
    case 2:
      return launch_instance<kMath, 2>(p, plan, stream);
    case 4:
      return launch_instance<kMath, 4>(p, plan, stream);
    default:
      return launch_instance<kMath, 8>(p, plan, stream);
  }
}

}  // namespace fathom::ops::gemm
