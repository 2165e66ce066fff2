// The largest logit of each row: each block looks at its part. Where nothing is drawn, the last block of a row to come
// writes the token; else the next launch finds it (weigh_kernel.cuh).
#pragma once

#include "ops/choose/exchange.cuh"

namespace fathom::ops::choose {

struct LargestShared {
  uint64_t part[kWarps];
  uint32_t last;
};

/// Grid (parts, rows), kThreads threads, as for the blocks of the two other launches.
template <bool kAlone>
FATHOM_DEVICE void largest_block(const ChooseArgs& a, Parts parts, Exchange* exchange, LargestShared& shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int r = device::block_y(), warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  Exchange& e = exchange[r];
  uint64_t best = 0;
  for_each_logit(a.logits.data + r * a.logits.stride[0], static_cast<int>(a.logits.size[1]), parts,
                 [&](float v, int id) { best = std::max(best, rank_of(v, id)); });
  best = largest_of_warp(best);
  if (lane == 0) shared.part[warp] = best;
  device::sync_block();
  if (warp == 0) {
    best = largest_of_warp(lane < kWarps ? shared.part[lane] : 0);
    if (lane == 0) e.largest[device::block_x()] = best;
  }
  if constexpr (!kAlone) return;
  if (!last_of_row(e, &shared.last) || warp != 0) return;
  best = largest_of_warp(lane < parts.count ? device::load_l2(&e.largest[lane]) : 0);
  if (lane == 0) a.token(r) = best == kBad ? kRowNotFinite : id_of(best);
}

}  // namespace fathom::ops::choose
