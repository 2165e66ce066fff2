// From gate products to experts: one warp a token computes s = sqrt(softplus(g)) in place, chooses and weighs.
#pragma once

#include "ops/device/scalars.cuh"
#include "ops/route/route.h"

namespace fathom::ops::route {

inline constexpr int kLaneExperts = 16;  // experts that a lane holds
inline constexpr int kMostExperts = 32 * kLaneExperts, kMostChosen = 32;

FATHOM_DEVICE float score_of(float g) {
  return sqrtf(g > 20.0f ? g : log1pf(expf(g)));
}

/// The largest value of the warp, the lowest id among equals; -1 is no id.
FATHOM_DEVICE void warp_best(float& best, int& id) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = device::shuffle_xor(best, mask);
    const int other_id = device::shuffle_xor(id, mask);
    if (id < 0 || (other_id >= 0 && (other > best || (other == best && other_id < id)))) best = other, id = other_id;
  }
}

/// Id number `lane` of the chosen ones, in the order they were chosen.
FATHOM_DEVICE int choose_best(const RouteArgs& a, const float (&s)[kLaneExperts]) {
  const int lane = device::lane_index(), experts = static_cast<int>(a.gate.size[0]),
            k = static_cast<int>(a.expert.size[1]);
  float value[kLaneExperts];
  uint32_t taken = 0;  // bit i: this lane's expert i is out
  FATHOM_UNROLL
  for (int i = 0; i < kLaneExperts; ++i) {
    const int e = lane + 32 * i;
    value[i] = e < experts ? device::add(s[i], a.bias(e)) : 0;
    if (!(value[i] == value[i])) value[i] = -__builtin_huge_valf();  // NaN: still k different experts
    taken |= static_cast<uint32_t>(e >= experts) << i;
  }
  int mine = -1;
  for (int n = 0; n < k; ++n) {
    float best = 0;
    int id = -1;
    FATHOM_UNROLL
    for (int i = 0; i < kLaneExperts; ++i)
      if (!(taken >> i & 1) && (id < 0 || value[i] > best)) best = value[i], id = lane + 32 * i;
    warp_best(best, id);
    if (id % 32 == lane) taken |= 1u << id / 32;
    if (n == lane) mine = id;
  }
  return mine;
}

/// Grid (tokens); one warp.
FATHOM_DEVICE void route_block(const RouteArgs& a) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int lane = device::lane_index(), t = device::block_x(), k = static_cast<int>(a.expert.size[1]);
  const int experts = static_cast<int>(a.gate.size[0]);
  float s[kLaneExperts];
  FATHOM_UNROLL
  for (int i = 0; i < kLaneExperts; ++i) {
    const int e = lane + 32 * i;
    s[i] = e < experts ? score_of(a.scores(t, e)) : 0;
    if (e < experts) a.scores(t, e) = s[i];
  }
  const int mine = a.bias.data ? choose_best(a, s) : lane < k ? a.table(a.ids(t), lane) : -1;
  device::sync_warp();
  const float score = mine >= 0 ? a.scores(t, mine) : 0;  // written by this warp above
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
