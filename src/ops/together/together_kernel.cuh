// Which block does what where several small operations share a launch.
#pragma once

#include "ops/compress/compress_kernel.cuh"
#include "ops/index_select/query_kernel.cuh"
#include "ops/query/query_kernel.cuh"
#include "ops/together/together.h"
#include "ops/window_write/window_write_kernel.cuh"

namespace fathom::ops::together {

inline constexpr int kInputThreads = 32 * query::kWarps;
static_assert(query::kWarps == index_query::kWarps);

FATHOM_HOST_DEVICE inline int groups(int64_t heads) {
  return static_cast<int>((heads + query::kWarps - 1) / query::kWarps);
}
/// Blocks for each token: the window row first, its chain is the longest.
FATHOM_HOST_DEVICE inline int input_blocks(const AttentionInputsArgs& a) {
  return 1 + groups(a.query.q.size[1]) + (a.index.q.data ? groups(a.index.q.size[1]) : 0);
}

/// Grid (input_blocks, tokens).
FATHOM_DEVICE void inputs_block(const AttentionInputsArgs& a) {
  const int t = device::block_y(), heads = groups(a.query.q.size[1]);
  const int block = device::block_x() - 1;
  if (block < 0) {
    if (device::warp_index() == 0) window_write::write_block(a.window, t);
  } else if (block < heads) {
    query::query_block(a.query, block, t);
  } else {
    index_query::query_block(a.index, block - heads, t);
  }
}

/// Grid (entries + segments of both); `row` as for compress::fused_block.
FATHOM_DEVICE void compress_block(const CompressBothArgs& a, float* row) {
  const int64_t each = a.main.entries.size[0] + a.main.segments.size[0], block = device::block_x();
  if (block < each)
    compress::fused_block(a.main, block, row);
  else
    compress::fused_block(a.index, block - each, row);
}

}  // namespace fathom::ops::together
