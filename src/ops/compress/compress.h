// The compressor: pools blocks of `ratio` tokens into one cache entry each, and keeps the state that lets a sequence
// stop and go on anywhere. Spec 2.4.
//
// Every token t of a sequence has a value row K_t and a score row G_t + ape[t % ratio], fp32, of c*h channels (c = 2
// for ratio 4, else 1). Entry i pools, per channel, with a softmax over the scores:
//   ratio 128: tokens 128i .. 128i+127
//   ratio 4:   channels [0, h) of tokens 4i-4 .. 4i-1 (absent for i = 0) and channels [h, 2h) of tokens 4i .. 4i+3
// then bf16 -> RMSNorm -> RoPE at the block's first position -> KV row (main) or Hadamard and fp4 -> index row (index).
//
// State: for each sequence a ring of the value and score rows of its last R tokens, slot = t % R. Tokens of this call
// are read from `k` and `g`, older ones from the ring; then the last min(count, R) tokens of the call are written to
// it. Pooling needs R >= 2 * ratio for ratio 4 and R >= ratio for 128; a larger R allows rolling back R - that many
// tokens.
#pragma once

#include "ops/batch.h"
#include "ops/index_rows.h"
#include "ops/kv_rows.h"
#include "ops/op.h"

namespace fathom::ops {

/// One entry that this call completes.
struct CompressEntry {
  int32_t segment;  // index into `segments`
  int32_t index;    // entry number i in its sequence
  int32_t slot;     // row it goes to, -1: unused element of the array
};

struct CompressArgs {
  int32_t ratio = 4;          // 4 or 128
  View<const float, 2> k, g;  // [T, c*h]; g without ape
  View<const float, 2> ape;   // [ratio, c*h]
  View<const bf16, 1> norm;   // [h], h = 512 (main) or 128 (index)
  float rms_eps = 1e-6f;
  View<const float, 1> rope_freq;  // [32]
  View<const Segment, 1> segments;
  View<const CompressEntry, 1> entries;
  View<float, 3> state_k, state_g;  // [state slots, R, c*h] in and out; g with ape
  bool index = false;               // write index rows instead of KV rows
  KvPool pool;                      // !index
  RowFormat format = RowFormat::v4;
  IndexPool index_pool;  // index
};

Variants<CompressArgs> compress_variants();

}  // namespace fathom::ops
