// Which block does what where the queries' product and the compressions of a layer share a launch.
#pragma once

#include "ops/compress/compress_kernel.cuh"
#include "ops/linear/gemm_wide.cuh"
#include "ops/together/products_plan.h"

namespace fathom::ops::together {

static_assert(compress::kThreads == 32 * kProductWarps);

/// Grid (1, rows). kRatio: that of the compressions.
template <int kRatio>
FATHOM_DEVICE void queries_block(const QueryProducts& p, std::byte* shared) {
  const int block = device::block_y();
  if (block >= p.compressions) return gemm::wide_block<gemm::Math::e4m3_wide, 1>(p.queries, shared);
  auto* row = reinterpret_cast<float*>(shared);
  if constexpr (kRatio == 4) {
    const int each = p.index.k.data ? p.compressions / 2 : p.compressions;
    if (block < each)
      compress::fused_block(p.main, block, row);
    else
      compress::fused_block(p.index, block - each, row);
  } else {
    compress::whole_block(p.main, block, row, row + kHeadDim);
  }
}

}  // namespace fathom::ops::together
