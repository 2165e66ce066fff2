// Index queries: one warp a head of one token.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/index_select/index_select.h"

namespace fathom::ops::index_query {

inline constexpr int kWarps = 4;

/// Heads of group `group` of kWarps heads of token t, whose position is read before the previous kernel has ended.
FATHOM_DEVICE void query_block(const IndexQueryArgs& a, int group, int t) {
  const int lane = device::lane_index();
  const int64_t head = int64_t{group} * kWarps + device::warp_index();
  const device::Turn turn = device::turn_of(a.position(t), a.rope_freq(lane));
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (head >= a.q.size[1]) return;  // the same for a whole warp
  float v[4];
  device::load_4(&a.q(t, head, 4 * lane), v);
  device::warp_rope(v, turn);
  device::warp_hadamard(v);
  e8m0 scale;
  const uint16_t codes = device::warp_fp4(v, scale);
  reinterpret_cast<uint16_t*>(&a.codes(t, head, 0))[lane] = codes;
  if (lane % 8 == 0) a.scale(t, head, lane / 8) = scale;
}

}  // namespace fathom::ops::index_query
