// The largest logit of a row: several blocks a row, the last of which writes.
#pragma once

#include <bit>

#include "ops/choose/choose.h"
#include "ops/device/rows.cuh"
#include "ops/device/scalars.cuh"

namespace fathom::ops::choose {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;
inline constexpr int kPartLogits = kThreads * 16;  // of a block

/// What the blocks of a row exchange. Zero at launch, and left so.
struct alignas(16) Exchange {
  uint64_t best;
  uint32_t arrived, pad;
};

/// Rises with the logit; of equal ones the lower id is the larger. kBad, which beats all: a logit was not finite.
inline constexpr uint64_t kBad = ~0ull;
FATHOM_DEVICE uint64_t rank_of(float v, int id) {
  if (v - v != 0.0f) return kBad;
  const auto bits = std::bit_cast<uint32_t>(v + 0.0f);  // one zero
  const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{rising} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

#ifdef FATHOM_GPU_EMULATOR
inline void raise(uint64_t* p, uint64_t v) {
  *p = v > *p ? v : *p;
}
#else
FATHOM_DEVICE void raise(uint64_t* p, uint64_t v) {
  atomicMax(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
#endif

FATHOM_DEVICE uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

FATHOM_DEVICE uint64_t largest_of_warp(uint64_t v) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) v = larger(v, device::shuffle_from(v, device::thread_index() % 32 ^ mask));
  return v;
}

/// Grid (parts of kPartLogits logits, rows); kThreads threads; kWarps words of shared memory.
FATHOM_DEVICE void choose_block(const ChooseArgs& a, Exchange* exchange, uint64_t* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int row = device::block_y(), vocabulary = static_cast<int>(a.logits.size[1]);
  const int first = device::block_x() * kPartLogits + device::thread_index();
  const float* logits = a.logits.data + row * a.logits.stride[0];
  uint64_t best = 0;
  FATHOM_UNROLL_8
  for (int i = 0; i < kPartLogits / kThreads; ++i) {
    const int id = first + i * kThreads;
    if (id < vocabulary) best = larger(best, rank_of(logits[id], id));
  }
  best = largest_of_warp(best);
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  if (lane == 0) shared[warp] = best;
  device::sync_block();
  if (warp != 0) return;
  best = largest_of_warp(lane < kWarps ? shared[lane] : 0);
  if (lane != 0) return;
  Exchange& e = exchange[row];
  raise(&e.best, best);
  device::fence();
  if (device::atomic_add(&e.arrived, 1u) + 1 != static_cast<uint32_t>(device::grid_x())) return;
  device::fence();
  best = device::load_l2(&e.best);
  a.token(row) = best == kBad ? -1 : static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(best));
  e.best = 0, e.arrived = 0;
}

}  // namespace fathom::ops::choose
