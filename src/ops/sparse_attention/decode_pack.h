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

/// Whether `queries` consecutive tokens can be taken as one of `queries` times as many heads: outputs, queries and lse
/// without gaps between tokens.
inline bool packs(const SparseAttentionArgs& a, int64_t queries) {
  const int64_t tokens = a.q.size[0], heads = a.q.size[1];
  const auto dense = [&](const auto& v) { return !v.data || v.stride[0] == heads * v.stride[1]; };
  return queries > 1 && queries <= 8 && tokens % queries == 0 && dense(a.q) && dense(a.out) && dense(a.lse) &&
         dense(a.out_codes) && dense(a.out_scale) && a.format == RowFormat::v4;
}

/// Makes requests of tokens.
inline void pack_requests(Params& p, int32_t queries) {
  p.queries = queries, p.each_heads = p.heads, p.heads *= queries;
  for (int64_t* stride :
       {&p.q_token_stride, &p.out_token_stride, &p.lse_token_stride, &p.codes_token_stride, &p.code_scale_token_stride})
    *stride *= queries;
}

/// Divides tokens that have all their rows among `splits` blocks of tiles of `tile_rows`.
inline void divide(Params& p, int tile_rows, int splits) {
  const Share all = share_of(p.window.most + p.extra.most, tile_rows, splits, 0);
  p.tiles_each = all.tiles, p.blocks = all.blocks;
}

}  // namespace fathom::ops::sparse_decode
