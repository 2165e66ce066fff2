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
  const auto kernel = plan.tiles == 1   ? project_stream<1>
                      : plan.tiles == 2 ? project_stream<2>
                      : plan.tiles == 4 ? project_stream<4>
                                        : project_stream<8>;
  stream::launch_tiles("output_project", kernel, plan, stream::threads(plan.tiles), stream, p, maps, to);
}

}  // namespace fathom::ops::output_projection
