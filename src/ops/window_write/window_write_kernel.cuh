// Latent KV rows into the window's pages: one warp a token.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/window_write/window_write.h"

namespace fathom::ops::window_write {

/// The row of token t. One warp a block: few tokens come at a time, and each is a chain of dependent steps. Positions
/// and slots are read before the previous kernel has ended.
FATHOM_DEVICE void write_block(const WindowWriteArgs& a, int t) {
  const int lane = device::lane_index();
  const float frequency = a.rope_freq(lane);
  float w[16];
  device::load_lane(a.norm.data, w);
  const int64_t slot = a.slot(t);
  const device::Turn turn = device::turn_of(a.position(t), frequency);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (slot < 0) return;
  float v[16];
  device::load_lane(&a.kv(t, 0), v);
  device::warp_rmsnorm(v, w, a.rms_eps);
  device::warp_rope(v, turn);
  device::write_kv_row(a.pool, a.format, static_cast<uint32_t>(slot), v);
}

}  // namespace fathom::ops::window_write
