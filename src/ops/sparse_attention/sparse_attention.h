// Sparse MLA attention of a few query tokens over window rows and selected compressed rows, all heads sharing each row.
//
// For token t and head h, over the rows r named by window.index[t] and extra.index[t] (-1 skipped):
//   s_r = scale * dot512(q[t,h], kv_r)         fp32
//   m   = max_r s_r;  p_r = exp(s_r - m)
//   den = sum_r p_r + exp(sink[h] - m)         the sink only enters the denominator, unscaled
//   o   = (sum_r bf16(p_r) * kv_r) / den       the same 512-channel row is K and V; den uses unrounded p
// then, if `position` is given, inverse RoPE of o[448:512] at position[t], on o rounded to bf16 first; bf16 out.
// No row at all: o = 0 and lse = -inf. Spec 2.3; rounding p against a running maximum is as right as against m.
#pragma once

#include "ops/kv_rows.h"
#include "ops/op.h"

namespace fathom::ops {

/// The rows each token may see in one pool.
struct RowSet {
  KvPool pool;
  View<const int32_t, 2> index;   // [T, most rows] slots, -1 = masked; data == null: no such rows
  View<const int32_t, 1> length;  // [T] how many of index[t] count; data == null: all
};

struct SparseAttentionArgs {
  View<const bf16, 3> q;  // [T, H, 512]
  RowFormat format = RowFormat::v4;
  RowSet window, extra;
  View<const float, 1> sink;  // [H] natural-log units; data == null: no sink
  float scale = 0;            // 512^-0.5 for V4
  /// Hint: so many consecutive tokens name the same slots in nearly all columns of their lists (windows, all compressed
  /// rows of a context); 1 where each has a list of its own, as top-k lists are. Results are right in any case.
  int32_t queries_per_request = 1;

  View<const int32_t, 1> position;  // [T]; data == null: no inverse RoPE
  View<const float, 1> rope_freq;   // [32] fp32 base frequencies

  View<bf16, 3> out;        // [T, H, 512]; data == null when only codes are wanted
  View<float, 2> lse;       // [T, H] ln(sum_r exp(s_r)), sink excluded; data == null: not written
  View<e4m3, 3> out_codes;  // [T, H, 512] optional: out quantised per 128 channels (act_quant) ...
  View<e8m0, 3> out_scale;  // [T, H, 4]   ... and its scales
};

Variants<SparseAttentionArgs> sparse_attention_variants();

}  // namespace fathom::ops
