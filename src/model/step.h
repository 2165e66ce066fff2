// What one step of the model works on: a batch of tokens of several sequences, and the cache memory they read and
// write.
//
// The cache layer fills these structs (it knows pages and sequences); the model only sees rows and slots. All arrays
// live in the memory of the model's backend. T = tokens of the step, S = segments, R = rows whose logits are wanted.
#pragma once

#include <vector>

#include "base/view.h"
#include "formats/config.h"
#include "ops/batch.h"
#include "ops/choose/choose.h"
#include "ops/compress/compress.h"
#include "ops/index_rows.h"
#include "ops/kv_rows.h"

namespace fathom {

struct StepBatch {
  View<const int32_t, 1> ids;                              // [T]
  View<const int32_t, 1> position;                         // [T]
  View<const ops::Segment, 1> segments;                    // [S]
  View<const int32_t, 1> window_slot;                      // [T] row that receives the token's KV
  View<const int32_t, 2> window_index;                     // [T, window] rows of the window, oldest first, itself last
  View<const int32_t, 1> window_length;                    // [T]
  View<const int32_t, 2> index128;                         // [T, most] rows of the ratio-128 entries the token sees
  View<const int32_t, 1> length128;                        // [T]
  View<const ops::CompressEntry, 1> entries4, entries128;  // completed in this step
  View<const int32_t, 2> pages;                            // [S, most] entry pages of each segment's sequence
  View<const int32_t, 1> sequence;                         // [T] row of `pages`
  View<const int32_t, 1> visible4;                         // [T] ratio-4 entries the token sees
  View<const int32_t, 1> logit_rows;                       // [R] tokens whose logits are wanted
  View<const ops::RowSampling, 1> sampling;                // [R] how their tokens are drawn; empty: the largest
  int64_t prefill_tokens = 0;                              // tokens of segments longer than 1, for reports
};

/// Fields that the layer's ratio does not need stay empty.
struct LayerCache {
  ops::RowFormat format = ops::RowFormat::v4;
  ops::KvPool window;                           // every layer
  ops::KvPool entries;                          // ratio 4 and 128
  ops::IndexPool index;                         // ratio 4
  View<float, 3> state_k, state_g;              // ratio 4 and 128: [sequences, ring, c*512]
  View<float, 3> index_state_k, index_state_g;  // ratio 4: [sequences, ring, 256]
};

}  // namespace fathom
