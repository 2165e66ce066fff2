// Choosing the best of the keys that a block holds, in the order in which they lie: a thread has neighbouring keys.
//
// Keys are 16 bits; they are handed over plus one, and 0 means that there is none. The k-th largest is found two bits
// at a time, by counts over the block; equal keys are chosen from the front.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/index_select/select_plan.h"

namespace fathom::ops::index_select {

/// What the warps of a block tell each other. Two successive sums use different turns. (Aligned so that no load of one
/// turn touches a word of the other.)
struct alignas(16) Counts {
  uint32_t warp[2][kWarps];
};

/// Sum over the block of the warps' values, which are the same in all lanes of a warp; `before`: over warps before this
/// one.
FATHOM_DEVICE uint32_t sum_of_block(uint32_t v, int turn, Counts& shared, uint32_t* before = nullptr) {
  uint32_t* count = shared.warp[turn];
  const int warp = device::warp_index();
  if (device::lane_index() == 0) count[warp] = v;
  device::sync_block();
  uint32_t sum = 0, first = 0;
  FATHOM_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    first = w == warp ? sum : first;
    sum += count[w];
  }
  if (before) *before = first;
  return sum;
}

/// The sum of `v` over the threads before this one, and over all.
FATHOM_DEVICE int sum_before(int v, int turn, Counts& counts, int* all) {
  const int lane = device::lane_index();
  int through = v;
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int other = device::shuffle_int(through, (lane - step) & 31);
    if (lane >= step) through += other;
  }
  uint32_t before;
  *all = static_cast<int>(sum_of_block(static_cast<uint32_t>(device::shuffle_int(through, 31)), turn, counts, &before));
  return static_cast<int>(before) + through - v;
}

/// How many keys reach each of three limits: in ten bits each for a warp, apart for a block.
template <int kEach>
FATHOM_DEVICE uint32_t count_reaching(const uint32_t (&key)[kEach], uint32_t limit, uint32_t step) {
  static_assert(32 * kEach < 1024);
  uint32_t count = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i)
    count += (key[i] > limit + step ? 1u : 0u) + (key[i] > limit + 2 * step ? 1u << 10 : 0u) +
             (key[i] > limit + 3 * step ? 1u << 20 : 0u);
  return device::sum_of_warp(count);
}

/// The k-th largest key of the block (not plus one), two bits at a time. Fewer than k keys: 0. The first sum has turn
/// 1, the last one turn 0.
template <int kEach>
FATHOM_DEVICE uint32_t kth_key(const uint32_t (&key)[kEach], uint32_t k, Counts& shared) {
  uint32_t limit = 0;
  FATHOM_UNROLL_1
  for (int bit = 14; bit >= 0; bit -= 2) {
    uint32_t* warp = shared.warp[bit / 2 & 1];
    const uint32_t step = 1u << bit, own = count_reaching(key, limit, step);
    if (device::lane_index() == 0) warp[device::warp_index()] = own;
    device::sync_block();
    uint32_t one = 0, two = 0, three = 0;  // keys that reach as many steps
    FATHOM_UNROLL
    for (int w = 0; w < kWarps; ++w) one += warp[w] & 0x3FF, two += warp[w] >> 10 & 0x3FF, three += warp[w] >> 20;
    limit += three >= k ? 3 * step : two >= k ? 2 * step : one >= k ? step : 0;
  }
  return limit;
}

/// This thread's keys among the chosen ones: bit i is key i; the lowest one goes to `place`, the others behind it.
struct Picked {
  uint32_t keys;
  int place;
  int all;  // of the block
};
/// The keys above `limit` and of those equal to it as many as k has room for, from the front. One sum, of turn 1.
template <int kEach>
FATHOM_DEVICE Picked pick(const uint32_t (&key)[kEach], uint32_t limit, uint32_t k, Counts& shared) {
  static_assert(kEach <= 32);
  uint32_t greater = 0, equal = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i) {
    greater |= static_cast<uint32_t>(key[i] > limit + 1) << i;
    equal |= static_cast<uint32_t>(key[i] == limit + 1) << i;
  }
  // Greater ones in the low half, equal ones in the high half.
  const uint32_t own =
      static_cast<uint32_t>(device::count_bits(greater)) | static_cast<uint32_t>(device::count_bits(equal)) << 16;
  int sum;
  const auto before = static_cast<uint32_t>(sum_before(static_cast<int>(own), 1, shared, &sum));
  const auto all = static_cast<uint32_t>(sum);
  const uint32_t greater_before = before & 0xFFFF, equal_before = before >> 16, greater_all = all & 0xFFFF;
  const uint32_t wanted = k > greater_all ? k - greater_all : 0;
  const uint32_t taken = equal_before < wanted ? equal_before : wanted;
  uint32_t left = wanted - taken;  // equal ones that may still be chosen
  FATHOM_UNROLL_1
  for (uint32_t rest = equal; rest != 0; rest &= rest - 1) {
    if (left > 0)
      --left;
    else
      equal &= ~(rest & ~(rest - 1));
  }
  const uint32_t equal_all = all >> 16 < wanted ? all >> 16 : wanted;
  return {greater | equal, static_cast<int>(greater_before + taken), static_cast<int>(greater_all + equal_all)};
}
/// The best k of the block's keys, of which there are at least so many.
template <int kEach>
FATHOM_DEVICE Picked pick_best(const uint32_t (&key)[kEach], uint32_t k, Counts& shared) {
  return pick(key, kth_key(key, k, shared), k, shared);
}

}  // namespace fathom::ops::index_select
