// The largest logit of a row: one block a row.
#pragma once

#include "ops/choose/choose.h"
#include "ops/device/rows.cuh"
#include "ops/device/scalars.cuh"

namespace fathom::ops::choose {

inline constexpr int kThreads = 1024, kWarps = kThreads / 32;

struct Best {
  float value;
  int id;  // -1: none; kBad: a value was not finite, which beats everything
};
inline constexpr int kBad = -2;

FATHOM_DEVICE void take(Best& best, const Best& other) {
  if (best.id == kBad || other.id == -1) return;
  const bool better = best.id == -1 || other.id == kBad || other.value > best.value ||
                      (other.value == best.value && other.id < best.id);
  if (better) best = other;
}

FATHOM_DEVICE void warp_best(Best& best) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2)
    take(best, {device::shuffle_xor(best.value, mask), device::shuffle_xor(best.id, mask)});
}

/// Grid (rows); kThreads threads; kWarps of Best in shared memory.
FATHOM_DEVICE void choose_block(const ChooseArgs& a, Best* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int row = device::block_x(), vocabulary = static_cast<int>(a.logits.size[1]);
  const float* logits = a.logits.data + row * a.logits.stride[0];
  Best best{0, -1};
  FATHOM_UNROLL_4
  for (int i = device::thread_index(); i < vocabulary; i += kThreads) {
    const float v = logits[i];
    take(best, {v, v - v == 0.0f ? i : kBad});
  }
  warp_best(best);
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  if (lane == 0) shared[warp] = best;
  device::sync_block();
  if (warp != 0) return;
  best = lane < kWarps ? shared[lane] : Best{0, -1};
  warp_best(best);
  if (lane == 0) a.token(row) = best.id == kBad ? -1 : best.id;
}

}  // namespace fathom::ops::choose
