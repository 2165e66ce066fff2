// SparseAttentionArgs -> the plain parameters of the decode kernel.
#pragma once

#include "ops/sparse_attention/decode_params.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops::sparse_decode {

inline Rows pack_rows(const RowSet& set) {
  Rows rows;
  if (!set.index.data) return rows;
  rows.pool = set.pool;
  rows.pages = PageDivision::by(set.pool.page_rows);
  rows.index = set.index.data;
  rows.index_stride = set.index.stride[0];
  rows.most = static_cast<int32_t>(set.index.size[1]);
  rows.length = set.length.data;
  return rows;
}

/// Everything but the workspace pointers and the patience.
inline Params pack(const SparseAttentionArgs& args) {
  Params p;
  p.q = reinterpret_cast<const uint16_t*>(args.q.data);
  p.q_token_stride = args.q.stride[0], p.q_head_stride = args.q.stride[1];
  p.window = pack_rows(args.window), p.extra = pack_rows(args.extra);
  p.sink = args.sink.data;
  p.score_scale = static_cast<float>(args.scale * 1.4426950408889634);
  p.position = args.position.data, p.rope_freq = args.rope_freq.data;
  p.out = reinterpret_cast<uint16_t*>(args.out.data);
  p.out_token_stride = args.out.stride[0], p.out_head_stride = args.out.stride[1];
  p.lse = args.lse.data, p.lse_token_stride = args.lse.stride[0];
  p.codes = reinterpret_cast<uint8_t*>(args.out_codes.data);
  p.codes_token_stride = args.out_codes.stride[0], p.codes_head_stride = args.out_codes.stride[1];
  p.code_scale = reinterpret_cast<uint8_t*>(args.out_scale.data);
  p.code_scale_token_stride = args.out_scale.stride[0], p.code_scale_head_stride = args.out_scale.stride[1];
  p.heads = static_cast<int32_t>(args.q.size[1]);
  return p;
}

/// Divides tokens that have all their rows among `splits` blocks of tiles of `tile_rows`.
inline void divide(Params& p, int tile_rows, int splits) {
  const Share all = share_of(p.window.most + p.extra.most, tile_rows, splits, 0);
  p.tiles_each = all.tiles, p.blocks = all.blocks;
}

}  // namespace fathom::ops::sparse_decode
