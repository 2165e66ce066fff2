// The queries' product with compressions beside it: sm_90 alone.
#include "ops/device/launch.cuh"
#include "ops/together/queries_kernel.cuh"

namespace fathom::ops {
namespace {

template <int kRatio>
__global__ void __launch_bounds__(32 * together::kProductWarps, together::query_residents(kRatio))
    query_products(const __grid_constant__ together::QueryProducts p) {
  extern __shared__ __align__(1024) std::byte shared[];
  if constexpr (device::kForSm90) together::queries_block<kRatio>(p, shared);
}

}  // namespace

void query_products_sm90(const QueryProductsArgs& a, const Launch& l) {
  const together::QueryProducts p = together::lay_out(a, l.device);
  const device::LaunchShape shape{dim3(1, static_cast<unsigned>(p.rows)), 32 * together::kProductWarps, p.shared_bytes,
                                  true, true};
  device::launch("query_products", a.main.ratio == 4 ? query_products<4> : query_products<128>, shape, l.stream, p);
}

}  // namespace fathom::ops
