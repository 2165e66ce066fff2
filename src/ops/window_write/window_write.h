// The latent KV row of each token: RMSNorm, RoPE, fp8 rounding of the first 448 channels per 64, and the write into its
// page. Spec 2.3, 3.3.
#pragma once

#include "ops/kv_rows.h"
#include "ops/op.h"

namespace fathom::ops {

struct WindowWriteArgs {
  View<const bf16, 2> kv;    // [T, 512] output of wkv
  View<const bf16, 1> norm;  // [512]
  float rms_eps = 1e-6f;
  View<const int32_t, 1> position;  // [T]
  View<const float, 1> rope_freq;   // [32]
  View<const int32_t, 1> slot;      // [T] row of `pool`, -1: drop the token
  KvPool pool;
  RowFormat format = RowFormat::v4;  // bf16 rows hold the same (already rounded) values
};

Variants<WindowWriteArgs> window_write_variants();

}  // namespace fathom::ops
