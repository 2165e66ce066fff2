// How the products with the input of an attention half share a launch: blocks of 8 warps in clusters of 8, each product
// with rows of the grid of its own. Slices of K and bits are those of each product alone, but for the latents with
// --fast, where more slices are faster.
#pragma once

#include "ops/linear/gemm_params.h"
#include "ops/together/together.h"

namespace fathom::ops::together {

inline constexpr int kProductWarps = 8, kProductCluster = 8, kProducts = 3;
/// Blocks a multiprocessor that the kernel of the queries is compiled for, beside compressions of a ratio.
constexpr int query_residents(int ratio) {
  return ratio == 4 ? 3 : 2;
}

struct ProductsPlan {
  bool fits = false;
  int rows[kProducts + 1] = {};  // product i has rows [rows[i], rows[i + 1]) of the grid
  size_t shared_bytes = 0;
};

/// latents, compressor, weights; a product that is absent has no rows.
struct Products {
  gemm::Params of[kProducts];
  ProductsPlan plan;
};

/// The product of the queries and, in the rows of the grid before it, blocks of the compressions.
struct QueryProducts {
  gemm::Params queries;
  CompressArgs main, index;
  int32_t compressions = 0;  // blocks; those of `main` and `index` are as many
  int32_t rows = 0;          // of the grid
  size_t shared_bytes = 0;
  bool fits = false;
};
QueryProducts lay_out(const QueryProductsArgs& a, const DeviceInfo& device);

/// Parameters of the products at their places in the grid; plan.fits is false where they cannot run together or would
/// not have a place at once. `exact`: with the slices that linear_fp8 has for any number of tokens.
Products lay_out(const InputProductsArgs& a, const DeviceInfo& device, bool exact);

}  // namespace fathom::ops::together
