// The arguments of the decode kernel as plain data, and the rule that divides a token's rows among blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kv_rows.h"

namespace fathom::ops::sparse_decode {

/// slot / page_rows as a product: exact for slots below 2^31.
struct PageDivision {
  uint32_t factor = 0;
  int32_t shift = 0;

  static PageDivision by(int32_t page_rows) {
    PageDivision d;
    d.shift = 31;
    while ((int64_t{1} << (d.shift - 31)) < page_rows) ++d.shift;
    d.factor = static_cast<uint32_t>(((uint64_t{1} << d.shift) + static_cast<uint32_t>(page_rows) - 1) /
                                     static_cast<uint32_t>(page_rows));
    return d;
  }
  FATHOM_HOST_DEVICE uint32_t page_of(int32_t slot) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(static_cast<uint32_t>(slot)) * factor >> shift);
  }
};

/// One RowSet.
struct Rows {
  KvPool pool;
  PageDivision pages;
  const int32_t* index = nullptr;
  const int32_t* length = nullptr;  // null: all `most`
  int64_t index_stride = 0;
  int32_t most = 0;  // columns of index
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

/// In the workspace, for launches that mail partial results (decode_mail.cuh): how many there were, times
/// 2^kMailShift, and how many bytes of either place the last one to use it has written.
struct alignas(16) MailCount {
  uint64_t launches = 0;
  uint32_t used[2] = {};
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
  // Packed (decode_packed.cuh): a token of the grid is a request of so many query tokens with `each_heads` heads, which
  // `heads` counts all; strides of tokens are those of requests.
  int32_t queries = 1, each_heads = 0;
  int32_t tiles_each = 0, blocks = 1;  // of a token that has all its rows: tiles a split, splits that have any

  // Combination of splits.
  uint64_t* arrivals = nullptr;  // [units], zero before the first use ever
  float* state = nullptr;        // [units][splits]: [block heads][2], then [block heads / 16][8] factors
  uint64_t* partial = nullptr;   // [units][splits][quads], four fp16 each
  int64_t patience = 0;          // cycles to wait for the other splits before leaving the work to the last of them
  MailCount* mail = nullptr;     // null: through `arrivals`; else by mail, in one of two places
  std::byte* places = nullptr;
  int64_t place_bytes = 0;
  int32_t all_blocks = 0;  // of the grid
};

}  // namespace fathom::ops::sparse_decode
