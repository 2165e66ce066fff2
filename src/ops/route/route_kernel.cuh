// From gate products to experts: one warp a token computes s = sqrt(softplus(g)) in place, chooses and weighs.
#pragma once

#include <bit>

#include "ops/device/scalars.cuh"
#include "ops/route/route.h"

namespace fathom::ops::route {

inline constexpr int kFewLaneExperts = 8, kManyLaneExperts = 16;  // experts that a lane holds
inline constexpr int kMostExperts = 32 * kManyLaneExperts, kMostChosen = 32;
inline constexpr int kThreads = 256;
/// More are chosen for by a launch of their own, a block each.
inline constexpr int kFewTokens = 2;

/// Of a token.
struct Shared {
  float score[kMostExperts];
  float chosen[kMostChosen];  // scores of the chosen ones, ascending ids
};

FATHOM_DEVICE float score_of(float g) {
  return sqrtf(g > 20.0f ? g : log1pf(expf(g)));
}

/// Unsigned numbers in the order of the values, none 0. No NaN.
FATHOM_DEVICE uint32_t rising(float v) {
  const auto bits = std::bit_cast<uint32_t>(device::add(v, 0.0f));  // -0 is +0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// Id number `lane` of the chosen ones, in the order they were chosen. At most 32 * kHeld experts.
template <int kHeld>
FATHOM_DEVICE int choose_best(const RouteArgs& a, const float* score, const float (&bias)[kManyLaneExperts]) {
  const int lane = device::lane_index(), experts = static_cast<int>(a.gate.size[0]),
            k = static_cast<int>(a.expert.size[1]);
  uint32_t key[kHeld];  // 0: out
  FATHOM_UNROLL
  for (int i = 0; i < kHeld; ++i) {
    const int e = lane + 32 * i;
    const float value = e < experts ? device::add(score[e], bias[i]) : 0;
    key[i] = e >= experts ? 0 : rising(value == value ? value : -__builtin_huge_valf());  // still k different experts
  }
  int mine = -1;
  FATHOM_UNROLL_1
  for (int n = 0; n < k; ++n) {
    uint32_t best = 0, id = ~0u;
    FATHOM_UNROLL
    for (int i = 0; i < kHeld; ++i)
      if (key[i] > best) best = key[i], id = static_cast<uint32_t>(lane + 32 * i);
    const uint32_t most = device::largest_of_warp(best);
    const auto chosen = static_cast<int>(device::smallest_of_warp(best == most ? id : ~0u));  // the lowest of equals
    FATHOM_UNROLL
    for (int i = 0; i < kHeld; ++i)
      if (chosen == lane + 32 * i) key[i] = 0;
    if (n == lane) mine = chosen;
  }
  return mine;
}

/// What the first warp knows of a token before its scores.
struct Known {
  float bias[kManyLaneExperts] = {};
  int mine = -1;  // a hash layer's expert number `lane`
};
FATHOM_DEVICE Known load_known(const RouteArgs& a, int t) {
  Known known;
  const int lane = device::lane_index(), experts = static_cast<int>(a.gate.size[0]);
  if (device::warp_index() != 0) return known;
  if (a.bias.data) {
    FATHOM_UNROLL
    for (int i = 0; i < kManyLaneExperts; ++i)
      if (lane + 32 * i < experts) known.bias[i] = a.bias(lane + 32 * i);
  } else if (lane < a.expert.size[1]) {
    known.mine = a.table(a.ids(t), lane);
  }
  return known;
}

/// Experts of a token and their weights: all threads make scores, the first warp chooses. Short code, little of it
/// run more than once: in a step it comes from memory, because weights have displaced it from the caches.
FATHOM_DEVICE void choose_token(const RouteArgs& a, int t, const Known& known, Shared& shared) {
  const int lane = device::lane_index(), experts = static_cast<int>(a.gate.size[0]);
  const int k = static_cast<int>(a.expert.size[1]);
  FATHOM_UNROLL_1
  for (int e = device::thread_index(); e < experts; e += kThreads)
    shared.score[e] = a.scores(t, e) = score_of(device::load_l2(&a.scores(t, e)));
  device::sync_block();
  if (device::warp_index() != 0) return;
  int mine = known.mine;
  if (a.bias.data)
    mine = experts <= 32 * kFewLaneExperts ? choose_best<kFewLaneExperts>(a, shared.score, known.bias)
                                           : choose_best<kManyLaneExperts>(a, shared.score, known.bias);
  int place = 0;
  FATHOM_UNROLL_1
  for (int n = 0; n < k; ++n) {
    const int other = device::shuffle_int(mine, n);
    place += other < mine || (other == mine && n < lane);
  }
  const float score = mine >= 0 && mine < experts ? shared.score[mine] : 0;
  if (mine >= 0) shared.chosen[place] = score;
  device::sync_warp();
  float sum = 0;  // in ascending order of ids
  FATHOM_UNROLL_1
  for (int n = 0; n < k; ++n) sum += shared.chosen[n];
  if (mine < 0) return;
  a.expert(t, place) = mine;
  a.weight(t, place) = device::multiply(score / sum, a.route_scale);
}

/// Grid (tokens). Token ids are read before the previous kernel has ended.
FATHOM_DEVICE void route_block(const RouteArgs& a, Shared& shared) {
  const int t = device::block_x();
  const Known known = load_known(a, t);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  choose_token(a, t, known, shared);
}

}  // namespace fathom::ops::route
