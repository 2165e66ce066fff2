// Launch of the streaming product kernel.
#pragma once

#include "ops/device/launch.cuh"
#include "ops/linear/stream_params.h"

namespace fathom::ops::stream {

/// `kernel` takes Params, Maps and `more`. It starts while the previous kernel of the stream ends.
template <typename... More>
void launch_tiles(const char* op, void (*kernel)(Params, Maps, More...), const Plan& plan, void* stream,
                  const Params& p, const Maps& maps, const More&... more) {
  device::check(
      op, "shared memory",
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.shared_bytes)));
  cudaLaunchAttribute attribute[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.cluster()), static_cast<unsigned>(plan.token_tiles),
                        static_cast<unsigned>(plan.grid_tiles()));
  config.blockDim = dim3(static_cast<unsigned>(threads(plan.tiles)));
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attribute;
  attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  if (plan.cluster() > 1) {
    attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attribute[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(plan.cluster()), 1, 1};
  }
  device::check(op, "launch", cudaLaunchKernelEx(&config, kernel, p, maps, more...));
}

}  // namespace fathom::ops::stream
