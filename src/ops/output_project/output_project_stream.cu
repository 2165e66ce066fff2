// wo_a by the streaming product kernel: sm_90a alone.
#include "ops/linear/stream_launch.cuh"
#include "ops/output_project/stream_project.cuh"

namespace fathom::ops::output_projection {
namespace {

template <int kTiles>
__global__ void __launch_bounds__(stream::threads(kTiles), 2)
    project_stream(const __grid_constant__ stream::Params p, const __grid_constant__ stream::Maps maps,
                   const __grid_constant__ Results to) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) stream_project<kTiles>(p, maps, to, shared);
}

}  // namespace

void launch_stream(const stream::Params& p, const stream::Maps& maps, const Results& to, const stream::Plan& plan,
                   void* stream) {
  stream::with_tiles(plan, [&]<int kTiles>() {
    stream::launch_tiles("output_project", project_stream<kTiles>, plan, stream::threads(kTiles), stream, p, maps, to);
  });
}

}  // namespace fathom::ops::output_projection
