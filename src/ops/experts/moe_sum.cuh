// A kernel that adds the experts of each token, behind kernels whose blocks know nothing of each other.
#pragma once

#include "ops/experts/moe_kernel.cuh"

namespace fathom::ops::moe {

/// Grid: as many threads as there are eights of y. What sum_piece() gives, but all of a thread's loads are under way at
/// once: choices are older than the kernel before, and parts of experts that do not exist are read, too, and left out.
FATHOM_DEVICE void sum_block(const Params& p) {
  constexpr int kAtOnce = 6;  // choices of V4-Flash
  const int pieces = p.d / 8, i = device::block_x() * kSumThreads + device::thread_index();
  const bool mine = i < p.tokens * pieces;
  const int token = mine ? i / pieces : 0, row = mine ? i % pieces * 8 : 0;
  const int64_t slot = int64_t{token} * p.choices;
  const auto part = [&](int64_t of) {
    return device::load_l2(reinterpret_cast<const Float4*>(p.part + of * p.d + row));
  };
  bool there[kAtOnce];
  const auto look = [&](int first) {
    FATHOM_UNROLL
    for (int c = 0; c < kAtOnce; ++c)
      there[c] = first + c < p.choices && expert_of(p, static_cast<int>(slot) + first + c) >= 0;
  };
  look(0);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (!mine) return;
  Float4 shared = {};
  if (p.shared_tiles > 0) shared = part(int64_t{p.tokens} * p.choices + token);
  float sum[8] = {};
  FATHOM_UNROLL_1
  for (int first = 0; first < p.choices; first += kAtOnce) {
    if (first > 0) look(first);
    Float4 v[kAtOnce];
    FATHOM_UNROLL
    for (int c = 0; c < kAtOnce; ++c)
      if (first + c < p.choices) v[c] = part(slot + first + c);
    FATHOM_UNROLL
    for (int c = 0; c < kAtOnce; ++c)
      if (there[c]) add_part(sum, v[c]);
  }
  if (p.shared_tiles > 0) add_part(sum, shared);
  store_sum(p, token, row, sum);
}

}  // namespace fathom::ops::moe
