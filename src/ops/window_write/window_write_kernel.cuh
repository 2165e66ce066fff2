// Latent KV rows into the window's pages: one warp a token.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/window_write/window_write.h"

namespace fathom::ops::window_write {

/// One warp a block: few tokens come at a time, and each is a chain of dependent steps.
FATHOM_DEVICE void write_block(const WindowWriteArgs& a) {
  device::let_next_kernel_start();
  const int lane = device::lane_index(), t = device::block_x();
  const float frequency = a.rope_freq(lane);
  device::wait_for_previous_kernel();
  const int64_t slot = a.slot(t);
  if (slot < 0) return;
  float v[16];
  const bf16* row = &a.kv(t, 16 * lane);
  device::load_8(row, v), device::load_8(row + 8, v + 8);
  device::warp_rmsnorm(v, a.norm.data, a.rms_eps);
  device::warp_rope(v, device::turn_of(a.position(t), frequency));
  device::write_kv_row(a.pool, a.format, slot, v);
}

}  // namespace fathom::ops::window_write
