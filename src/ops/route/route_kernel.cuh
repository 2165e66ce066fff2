// From gate products to experts: one warp a token computes s = sqrt(softplus(g)) in place, chooses and weighs.
#pragma once

#include <bit>

#include "ops/device/scalars.cuh"
#include "ops/route/route.h"

namespace fathom::ops::route {

inline constexpr int kLaneExperts = 16;  // experts that a lane holds
inline constexpr int kMostExperts = 32 * kLaneExperts, kMostChosen = 32;

FATHOM_DEVICE float score_of(float g) {
  return sqrtf(g > 20.0f ? g : log1pf(expf(g)));
}

/// Unsigned numbers in the order of the values, none 0. No NaN.
FATHOM_DEVICE uint32_t rising(float v) {
  const auto bits = std::bit_cast<uint32_t>(device::add(v, 0.0f));  // -0 is +0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// Id number `lane` of the chosen ones, in the order they were chosen.
FATHOM_DEVICE int choose_best(const RouteArgs& a, const float (&s)[kLaneExperts], const float (&bias)[kLaneExperts]) {
  const int lane = device::lane_index(), experts = static_cast<int>(a.gate.size[0]),
            k = static_cast<int>(a.expert.size[1]);
  uint32_t key[kLaneExperts];  // 0: out
  FATHOM_UNROLL
  for (int i = 0; i < kLaneExperts; ++i) {
    const int e = lane + 32 * i;
    const float value = e < experts ? device::add(s[i], bias[i]) : 0;
    key[i] = e >= experts ? 0 : rising(value == value ? value : -__builtin_huge_valf());  // still k different experts
  }
  int mine = -1;
  for (int n = 0; n < k; ++n) {
    uint32_t best = 0, id = ~0u;
    FATHOM_UNROLL
    for (int i = 0; i < kLaneExperts; ++i)
      if (key[i] > best) best = key[i], id = static_cast<uint32_t>(lane + 32 * i);
    const uint32_t most = device::largest_of_warp(best);
    const auto chosen = static_cast<int>(device::smallest_of_warp(best == most ? id : ~0u));  // the lowest of equals
    FATHOM_UNROLL
    for (int i = 0; i < kLaneExperts; ++i)
      if (chosen == lane + 32 * i) key[i] = 0;
    if (n == lane) mine = chosen;
  }
  return mine;
}

/// Grid (tokens); one warp. Token ids are read before the previous kernel has ended.
FATHOM_DEVICE void route_block(const RouteArgs& a) {
  const int lane = device::lane_index(), t = device::block_x(), k = static_cast<int>(a.expert.size[1]);
  const int experts = static_cast<int>(a.gate.size[0]);
  float bias[kLaneExperts] = {};
  int mine = -1;
  if (a.bias.data) {
    FATHOM_UNROLL
    for (int i = 0; i < kLaneExperts; ++i)
      if (lane + 32 * i < experts) bias[i] = a.bias(lane + 32 * i);
  } else if (lane < k) {
    mine = a.table(a.ids(t), lane);
  }
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  float s[kLaneExperts];
  FATHOM_UNROLL
  for (int i = 0; i < kLaneExperts; ++i) {
    const int e = lane + 32 * i;
    s[i] = e < experts ? score_of(a.scores(t, e)) : 0;
    if (e < experts) a.scores(t, e) = s[i];
  }
  if (a.bias.data) mine = choose_best(a, s, bias);
  float score = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kLaneExperts; ++i) {
    const float held = device::shuffle_from(s[i], mine & 31);
    if (mine >> 5 == i) score = held;
  }
  int place = 0;
  for (int n = 0; n < k; ++n) {
    const int other = device::shuffle_int(mine, n);
    place += other < mine || (other == mine && n < lane);
  }
  float sum = 0;  // in ascending order of ids
  for (int n = 0; n < k; ++n) {
    const int at = device::lowest_bit(device::ballot(mine >= 0 && place == n));
    sum += device::shuffle_from(score, at);
  }
  if (mine < 0) return;
  a.expert(t, place) = mine;
  a.weight(t, place) = device::multiply(score / sum, a.route_scale);
}

}  // namespace fathom::ops::route
