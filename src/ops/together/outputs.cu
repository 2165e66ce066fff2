// wo_a and wo_b in one launch: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/together/outputs_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32 * together::kOutputWarps, 1)
    output_products(const __grid_constant__ together::OutputParams p,
                    const __grid_constant__ together::OutputMaps maps) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) together::outputs_block(p, maps, shared);
}

}  // namespace

void output_products_sm90_fast(const OutputProductsArgs& a, const Launch& l) {
  together::OutputParams p = together::lay_out(a, l.device);
  p.gate = static_cast<moe::Gate*>(l.workspace);
  const device::LaunchShape shape{dim3(static_cast<unsigned>(p.blocks)), 32 * together::kOutputWarps,
                                  static_cast<size_t>(p.layout.bytes), true, true};
  device::launch("output_products", output_products, shape, l.stream, p,
                 together::describe_outputs(p, device::describe_planes));
}

}  // namespace fathom::ops
