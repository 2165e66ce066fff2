// Launching a kernel with CUDA's answer checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace fathom::ops::device {

/// Throws Error: "OP: CUDA refuses the WHAT: WHY".
[[noreturn]] void launch_failed(const char* op, const char* what, const char* why);

/// Whether this is compiled for sm_90 (the host's pass: as if so). Kernels that are launched there alone are empty
/// elsewhere, which saves the time to compile them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
inline constexpr bool kForSm90 = false;
#else
inline constexpr bool kForSm90 = true;
#endif

struct LaunchShape {
  dim3 grid;
  int threads;
  size_t shared_bytes = 0;
  /// Starts while the previous kernel of the stream ends: it must call wait_for_previous_kernel(), and only then
  /// let_next_kernel_start(), so that whoever starts early can rely on everything older than its predecessor.
  bool early = false;
  /// The largest share of the multiprocessor's cache as shared memory, as the products have it: a multiprocessor can
  /// change the division only between kernels, when it is idle. For kernels that read nothing twice.
  bool most_shared = false;
  /// Blocks of a cluster, along x; 1: none.
  unsigned cluster = 1;
};

inline void check(const char* op, const char* what, cudaError_t code) {
  if (code != cudaSuccess) launch_failed(op, what, cudaGetErrorString(code));
}

/// Does nothing for an empty grid.
template <typename... Parameters>
void launch(const char* op, void (*kernel)(Parameters...), const LaunchShape& shape, void* stream,
            const Parameters&... parameters) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (shape.shared_bytes > 48 * 1024)
    check(op, "shared memory",
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)));
  cudaLaunchAttribute attribute[3];
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attribute;
  if (shape.early) {
    attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attribute[config.numAttrs++].val.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.most_shared) {
    attribute[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute[config.numAttrs++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  check(op, "launch", cudaLaunchKernelEx(&config, kernel, parameters...));
}

inline unsigned blocks_for(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

}  // namespace fathom::ops::device
