// The indexer of ratio-4 layers: its queries, and the choice of the entries each token attends to. Spec 2.5.
//
// index_query   q -> RoPE of the last 64 channels -> Hadamard * 128^-0.5 (bf16) -> e2m1 codes with e8m0 scale per 32
// index_select  I[i] = bf(sum_h bf(relu(bf(q_h . key_i)) * w_h)) over the entries i < visible[t], then the `topk`
// entries
//               with the largest I; equal scores: the lower entry wins. All entries when visible[t] <= topk.
#pragma once

#include "ops/index_rows.h"
#include "ops/op.h"

namespace fathom::ops {

struct IndexQueryArgs {
  View<const bf16, 3> q;            // [T, H, 128]
  View<const int32_t, 1> position;  // [T]
  View<const float, 1> rope_freq;   // [32]
  View<e2m1x2, 3> codes;            // out [T, H, 64]
  View<e8m0, 3> scale;              // out [T, H, 4]
};

struct IndexSelectArgs {
  View<const e2m1x2, 3> q;          // [T, H, 64]
  View<const e8m0, 3> q_scale;      // [T, H, 4]
  View<const bf16, 2> head_weight;  // [T, H], the two scale factors included
  IndexPool keys;
  View<const int32_t, 2> pages;     // [sequences, most pages] page numbers; entry i of a sequence is row i % page_rows
                                    // of page pages[sequence][i / page_rows]
  View<const int32_t, 1> sequence;  // [T] row of `pages`
  View<const int32_t, 1> visible;   // [T] entries the token may see: (position + 1) / 4
  int32_t topk = 512;
  View<int32_t, 2> index;   // out [T, topk] slots of the chosen entries in ascending entry order, then -1
  View<int32_t, 1> length;  // out [T] min(topk, visible)
};

Variants<IndexQueryArgs> index_query_variants();
Variants<IndexSelectArgs> index_select_variants();

}  // namespace fathom::ops
