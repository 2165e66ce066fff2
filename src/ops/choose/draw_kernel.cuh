// Third launch: each block collects its part's candidates above the level that the second launch has found; the last
// block of a row to come sorts them, and the filters are places in the sums of their weights.
#pragma once

#include <utility>

#include "ops/choose/weigh_kernel.cuh"

namespace fathom::ops::choose {

inline constexpr int kEach = kMostCandidates / kThreads;  // candidates of a thread: thread + i * kThreads

struct DrawShared {
  uint64_t key[2][kMostCandidates];
  uint64_t part[kWarps];
  uint32_t found, kept, last;
};

/// Sorts the `count` keys in registers, the largest first; those behind them are 0.
FATHOM_DEVICE void sort_keys(uint64_t (&mine)[kEach], int count, DrawShared& shared) {
  const int thread = device::thread_index(), lane = thread % 32;
  int size = 32, side = 0;
  while (size < count) size *= 2;
  const auto keep = [&](uint64_t& own, uint64_t other, int i, int width, int step) {
    const bool larger = ((i & step) == 0) == ((i & width) == 0);
    own = larger == (own > other) ? own : other;
  };
  const auto order = [&](int j, int k, int width) {
    if ((mine[j] < mine[k]) == (((thread + j * kThreads) & width) == 0)) std::swap(mine[j], mine[k]);
  };
  FATHOM_UNROLL_1
  for (int width = 2; width <= size; width *= 2) {
    FATHOM_UNROLL_1
    for (int step = width / 2; step > 0; step /= 2) {
      if (step == 2 * kThreads) {  // both in this thread
        order(0, 2, width), order(1, 3, width);
        continue;
      }
      if (step == kThreads) {
        order(0, 1, width), order(2, 3, width);
        continue;
      }
      if (step >= 32) {  // one barrier: the next exchange takes the other side
        FATHOM_UNROLL
        for (int j = 0; j < kEach; ++j)
          if (j * kThreads < size) shared.key[side][thread + j * kThreads] = mine[j];
        device::sync_block();
      }
      FATHOM_UNROLL
      for (int j = 0; j < kEach; ++j) {
        if (j * kThreads >= size) break;
        const int i = thread + j * kThreads;
        const uint64_t other = step >= 32 ? shared.key[side][i ^ step] : device::shuffle_from(mine[j], lane ^ step);
        keep(mine[j], other, i, width, step);
      }
      if (step >= 32) side ^= 1;
    }
  }
}
static_assert(kEach == 4);

/// The last block: `e.list` has the candidates.
FATHOM_DEVICE void draw_sorted(const RowSampling& how, Exchange& e, DrawShared& shared, int32_t* token) {
  const int thread = device::thread_index(), found = static_cast<int>(e.found);
  const Beside beside{e.best, how.scale};
  {
    uint64_t mine[kEach];
    FATHOM_UNROLL
    for (int j = 0; j < kEach; ++j)
      mine[j] = thread + j * kThreads < found ? device::load_l2(&e.list[thread + j * kThreads]) : 0;
    sort_keys(mine, found, shared);
    device::sync_block();  // keys may still be read
    FATHOM_UNROLL
    for (int j = 0; j < kEach; ++j) shared.key[0][thread + j * kThreads] = mine[j];
  }
  uint64_t* const below = shared.key[1];  // the weights of the candidates before
  const auto weight_at = [&](int i) { return beside.weight(logit_of(shared.key[0][i])); };
  const auto weight_of_first = [&](int count) { return below[count - 1] + weight_at(count - 1); };
  uint64_t sum = 0;
  FATHOM_UNROLL_1
  for (int first = 0; first < found; first += kThreads) {
    const int i = first + thread;
    below[i] = sum + sum_before(i < found ? weight_at(i) : 0, shared.part);
    sum += sum_of_parts(shared.part);
  }
  if (thread == 0) shared.kept = 0;
  device::sync_block();
  const int most = how.top_k > 0 ? std::min(how.top_k, found) : found;
  double wanted = 0;
  if (how.top_p < 1) wanted = how.top_p * static_cast<double>(how.top_k > 0 ? weight_of_first(most) : e.total);
  uint32_t kept = 0;  // each filter leaves the first ones
  FATHOM_UNROLL_1
  for (int i = thread; i < most; i += kThreads) {
    const bool in = (how.top_p >= 1 || static_cast<double>(below[i]) < wanted) && !too_small(weight_at(i), how);
    kept += i == 0 || in;
  }
  kept = device::sum_of_warp(kept);
  if (thread % 32 == 0 && kept > 0) device::atomic_add(&shared.kept, kept);
  device::sync_block();
  const int count = static_cast<int>(shared.kept);
  const uint64_t place = place_of(how.random, weight_of_first(count));
  FATHOM_UNROLL_1
  for (int i = thread; i < count; i += kThreads)
    if (below[i] <= place && place < weight_of_first(i + 1)) *token = id_of(shared.key[0][i]);
}

FATHOM_DEVICE void draw_block(const ChooseArgs& a, Parts parts, Exchange* exchange, DrawShared& shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int r = device::block_y();
  Exchange& e = exchange[r];
  const RowSampling how = a.sampling(r);
  const int level = e.level;
  if (how.scale == 0 || !how.filters() || level == kNothingMore) return;
  if (device::thread_index() == 0) shared.found = e.before[device::block_x()];
  device::sync_block();
  const Beside beside{e.best, how.scale};
  const float least = level_at(level);
  for_each_logit(a.logits.data + r * a.logits.stride[0], static_cast<int>(a.logits.size[1]), parts,
                 [&](float v, int id) {
                   const float x = beside(v);
                   if (x >= least && x > level_at(kLevelCount - 1))
                     e.list[device::atomic_add(&shared.found, 1u)] = rank_of(v, id);
                 });
  if (last_of_row(e, &shared.last)) draw_sorted(how, e, shared, &a.token(r));
}

}  // namespace fathom::ops::choose
