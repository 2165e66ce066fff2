// Query heads in place: one warp a head of one token.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/query/query.h"

namespace fathom::ops::query {

inline constexpr int kWarps = 4;

/// The factor of a head whose 16 channels a lane are v.
FATHOM_DEVICE float head_factor(const float (&v)[16], float eps, bool bf16_steps) {
  double squares = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 16; ++i) {
    const float square = v[i] * v[i];  // exact
    squares += static_cast<double>(bf16_steps ? round_bf16(square) : square);
  }
  squares = device::warp_sum(squares);
  if (!bf16_steps) return device::rms_factor(squares, kHeadDim, eps);
  const float mean = round_bf16(static_cast<float>(squares / kHeadDim));
  return round_bf16(1.0f / sqrtf(round_bf16(device::add(mean, eps))));
}

/// Heads of group `group` of kWarps heads of token t, whose position is read before the previous kernel has ended.
FATHOM_DEVICE void query_block(const QueryArgs& a, int group, int t) {
  const int lane = device::lane_index();
  const int64_t head = int64_t{group} * kWarps + device::warp_index();
  const device::Turn turn = device::turn_of(a.position(t), a.rope_freq(lane));
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (head >= a.q.size[1]) return;  // the same for a whole warp
  bf16* q = &a.q(t, head, 16 * lane);
  float v[16];
  device::load_8(q, v), device::load_8(q + 8, v + 8);
  const float factor = head_factor(v, a.rms_eps, a.bf16_steps);
  FATHOM_UNROLL
  for (int i = 0; i < 16; ++i) v[i] = round_bf16(v[i] * factor);
  device::warp_rope(v, turn);
  device::store_8(q, v), device::store_8(q + 8, v + 8);
}

}  // namespace fathom::ops::query
