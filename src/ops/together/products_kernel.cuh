// Which block makes which product where all products with one input share a launch.
#pragma once

#include "ops/linear/gemm_wide.cuh"
#include "ops/together/products_plan.h"

namespace fathom::ops::together {

/// Grid (cluster, rows of the plan).
FATHOM_DEVICE void products_block(const Products& p, std::byte* shared) {
  const int row = device::block_y();
  if (row < p.plan.rows[1])
    gemm::wide_block<gemm::Math::e4m3_wide, 1>(p.of[0], shared);
  else if (row < p.plan.rows[2])
    gemm::wide_block<gemm::Math::bf16_wide, 1>(p.of[1], shared);
  else
    gemm::wide_block<gemm::Math::bf16_wide, 1>(p.of[2], shared);
}

}  // namespace fathom::ops::together
