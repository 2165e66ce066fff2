// The arguments of the decode kernel as plain data, and the rule that divides a token's rows among blocks.
#pragma once

#include <cstdint>

#include "ops/kv_rows.h"

namespace fathom::ops::sparse_decode {

/// One RowSet.
struct Rows {
  KvPool pool;
  const int32_t* index = nullptr;
  const int32_t* length = nullptr;  // null: all `most`
  int64_t index_stride = 0;
  int32_t most = 0;  // columns of index
};

struct Params {
  const uint16_t* q = nullptr;
  int64_t q_token_stride = 0, q_head_stride = 0;
  Rows window, extra;
  const float* sink = nullptr;
  float score_scale = 0;  // softmax scale * log2(e): scores are kept in powers of two
  const int32_t* position = nullptr;
  const float* rope_freq = nullptr;
  uint16_t* out = nullptr;
  int64_t out_token_stride = 0, out_head_stride = 0;
  float* lse = nullptr;
  int64_t lse_token_stride = 0;
  uint8_t* codes = nullptr;
  int64_t codes_token_stride = 0, codes_head_stride = 0;
  uint8_t* code_scale = nullptr;
  int64_t code_scale_token_stride = 0, code_scale_head_stride = 0;
  int32_t heads = 0;

  // Combination of splits.
  uint64_t* arrivals = nullptr;  // [units], zero before the first use ever
  float* state = nullptr;        // [units][splits]: [block heads][2], then [block heads / 16][8] factors
  uint64_t* partial = nullptr;   // [units][splits][quads], four fp16 each
  int64_t patience = 0;          // cycles to wait for the other splits before leaving the work to the last of them
};

/// The tiles of one block.
struct Share {
  int first_tile, tiles;  // tiles may be 0
  int blocks;             // how many splits have any (1 for an empty token)
};

/// Divides the ceil(rows / tile_rows) tiles of a token among `splits` blocks: equal shares of whole tiles, so that few
/// rows use few blocks. Depends on nothing but the token's own length and the plan.
FATHOM_HOST_DEVICE constexpr Share share_of(int rows, int tile_rows, int splits, int split) {
  const int tiles = (rows + tile_rows - 1) / tile_rows;
  const int each = (tiles + splits - 1) / splits;
  if (tiles == 0) return {0, 0, 1};
  const int first = split * each;
  const int left = tiles - first;
  return {first, left < 0 ? 0 : (left < each ? left : each), (tiles + each - 1) / each};
}

}  // namespace fathom::ops::sparse_decode
