// The token of a row: several blocks look for the largest logit, the last of them to come draws.
#pragma once

#include "ops/choose/draw_kernel.cuh"

namespace fathom::ops::choose {

inline constexpr int kPartLogits = kThreads * 16;  // of a block

/// What the blocks of a row exchange. Zero at launch, and left so.
struct alignas(16) Exchange {
  uint64_t best;
  uint32_t arrived, pad;
};

FATHOM_DEVICE uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

FATHOM_DEVICE uint64_t largest_of_warp(uint64_t v) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) v = larger(v, device::shuffle_from(v, device::thread_index() % 32 ^ mask));
  return v;
}

/// The first thread of the last block of a row: the largest of all. Other threads: 0.
FATHOM_DEVICE uint64_t largest_of_row(Exchange& e, uint64_t best, uint64_t* part) {
  best = largest_of_warp(best);
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  if (lane == 0) part[warp] = best;
  device::sync_block();
  if (warp != 0) return 0;
  best = largest_of_warp(lane < kWarps ? part[lane] : 0);
  if (lane != 0) return 0;
  raise(&e.best, best);
  device::fence();
  if (device::atomic_add(&e.arrived, 1u) + 1 != static_cast<uint32_t>(device::grid_x())) return 0;
  device::fence();
  best = device::load_l2(&e.best);
  e.best = 0, e.arrived = 0;
  return best;
}

/// Grid (parts of kPartLogits logits, rows); kThreads threads.
FATHOM_DEVICE void choose_block(const ChooseArgs& a, Exchange* exchange, DrawShared& shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int r = device::block_y(), vocabulary = static_cast<int>(a.logits.size[1]);
  const int first = device::block_x() * kPartLogits + device::thread_index();
  const float* logits = a.logits.data + r * a.logits.stride[0];
  uint64_t best = 0;
  FATHOM_UNROLL_8
  for (int i = 0; i < kPartLogits / kThreads; ++i) {
    const int id = first + i * kThreads;
    if (id < vocabulary) best = larger(best, rank_of(logits[id], id));
  }
  best = largest_of_row(exchange[r], best, shared.part);
  if (device::thread_index() == 0) shared.below[0] = best;
  device::sync_block();
  best = shared.below[0];
  if (best == 0) return;  // not the last block
  const RowSampling how = a.sampling.data ? a.sampling(r) : RowSampling{};
  int32_t* token = &a.token(r);
  if (best == kBad || how.scale == 0) {
    if (device::thread_index() == 0) *token = best == kBad ? kRowNotFinite : id_of(best);
    return;
  }
  const Row row{logits, vocabulary, logit_of(best), how};
  if (how.filters())
    draw_filtered(row, shared, token);
  else
    draw_in_order(row, shared, token);
}

}  // namespace fathom::ops::choose
