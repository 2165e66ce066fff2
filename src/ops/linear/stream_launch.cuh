// Launch of the streaming product kernel.
#pragma once

#include "ops/device/launch.cuh"
#include "ops/linear/stream_params.h"

namespace fathom::ops::stream {

/// `kernel` takes Params, Maps and `more`. It starts while the previous kernel of the stream ends.
template <typename... More>
void launch_tiles(const char* op, void (*kernel)(Params, Maps, More...), const Plan& plan, int threads, void* stream,
                  const Params& p, const Maps& maps, const More&... more) {
  const dim3 grid(static_cast<unsigned>(plan.cluster()), static_cast<unsigned>(plan.token_tiles),
                  static_cast<unsigned>(plan.grid_tiles()));
  const device::LaunchShape shape{.grid = grid,
                                  .threads = threads,
                                  .shared_bytes = plan.shared_bytes,
                                  .early = true,
                                  .cluster = static_cast<unsigned>(plan.cluster())};
  device::launch(op, kernel, shape, stream, p, maps, more...);
}

}  // namespace fathom::ops::stream
