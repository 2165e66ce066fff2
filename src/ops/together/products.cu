// The products with an attention half's input in one launch: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/together/products_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32 * together::kProductWarps, 3)
    input_products(const __grid_constant__ together::Products p) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) together::products_block(p, shared);
}

void run_input_products(const InputProductsArgs& a, const Launch& l, bool exact) {
  const together::Products p = together::lay_out(a, l.device, exact);
  const dim3 grid(together::kProductCluster, static_cast<unsigned>(p.plan.rows[together::kProducts]));
  const device::LaunchShape shape{grid, 32 * together::kProductWarps, p.plan.shared_bytes, true,
                                  true, together::kProductCluster};
  device::launch("input_products", input_products, shape, l.stream, p);
}

}  // namespace

void input_products_sm90(const InputProductsArgs& a, const Launch& l) {
  run_input_products(a, l, true);
}
void input_products_sm90_fast(const InputProductsArgs& a, const Launch& l) {
  run_input_products(a, l, false);
}

}  // namespace fathom::ops
