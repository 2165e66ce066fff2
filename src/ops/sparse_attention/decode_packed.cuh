// The query tokens of a request (draft verification) as if they were more heads of one token: blocks of 32 or 64 of
// them share each staged row, where a rank of tensor parallelism with 4, 8 or 16 heads would leave most of a block
// empty and read every row once for each token.
//
// What is shared is found on the device, column by column: tokens that name the same slot in a column of their index
// lists share that row; each row carries a mask of the tokens that see it. A group of 16 columns takes as many passes
// as the most different slots that one of its columns has: one where the lists agree (compressed rows of a whole
// context; a window kept as a ring), up to one a token where they do not (top-k lists): right in any case, worth it
// only where they mostly agree, which is what the hint queries_per_request says. Lengths may differ: a list that is
// shorter has nothing in the later columns.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_rows.cuh"

namespace fathom::ops::sparse_decode {

/// The first and last query token that a block's heads belong to.
struct QueryRange {
  int first, last;
  FATHOM_DEVICE QueryRange(const Params& p, int first_head, int block_heads)
      : first(first_head / p.each_heads),
        last((first_head + block_heads < p.heads ? first_head + block_heads - 1 : p.heads - 1) / p.each_heads) {}
};

/// The most rows of each kind that a query token of the block has.
FATHOM_DEVICE RowCounts most_counts(const Params& p, int request, QueryRange queries) {
  RowCounts most{0, 0};
  for (int q = queries.first; q <= queries.last; ++q) {
    const int window = clamp_length(p.window, request * p.queries + q);
    const int extra = clamp_length(p.extra, request * p.queries + q);
    most.window = window > most.window ? window : most.window, most.extra = extra > most.extra ? extra : most.extra;
  }
  return most;
}

/// What the query tokens name in one column: -1 where a token has nothing there.
struct Column {
  int slot[kMostPacked];

  FATHOM_DEVICE static Column load(const Params& p, int request, QueryRange queries, RowCounts counts, int column) {
    Column c;
    const bool windowed = column < counts.window;
    const Rows& rows = windowed ? p.window : p.extra;
    if (!windowed) column -= counts.window;
    const bool exists = windowed || column < counts.extra;
    FATHOM_UNROLL
    for (int q = 0; q < kMostPacked; ++q) {
      const int token = request * p.queries + q;
      const bool seen = exists && q >= queries.first && q <= queries.last && column < clamp_length(rows, token);
      c.slot[q] = seen ? rows.index[token * rows.index_stride + column] : -1;
    }
    return c;
  }

  /// Whether no earlier token names the slot of token q, and there is one.
  FATHOM_DEVICE bool is_new(int q) const {
    bool found = slot[q] >= 0;
    FATHOM_UNROLL
    for (int i = 0; i < kMostPacked; ++i)
      if (i < q && slot[i] == slot[q]) found = false;
    return found;
  }
  FATHOM_DEVICE int different() const {
    int count = 0;
    FATHOM_UNROLL
    for (int q = 0; q < kMostPacked; ++q) count += is_new(q);
    return count;
  }
  /// Slot number `pass` of the different ones, and who names it; -1 and nobody when there are fewer.
  FATHOM_DEVICE int pick(int pass, uint32_t& mask) const {
    int chosen = -1, count = 0;
    FATHOM_UNROLL
    for (int q = 0; q < kMostPacked; ++q)
      if (is_new(q) && count++ == pass) chosen = slot[q];
    mask = 0;
    FATHOM_UNROLL
    for (int q = 0; q < kMostPacked; ++q) mask |= chosen >= 0 && slot[q] == chosen ? 1u << q : 0;
    return chosen;
  }
};

/// The largest value of 16 neighbouring lanes.
FATHOM_DEVICE int largest_of_16(int v) {
  FATHOM_UNROLL
  for (int mask = 1; mask < 16; mask *= 2) {
    const int other = device::shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

/// A group of 16 columns and which of its different slots.
struct Turn {
  int group = 0, pass = 0;
};

/// Counts the block's tiles, of which a group has one for each pass, and notes the passes of its first groups. Ends
/// with a barrier.
template <typename G>
FATHOM_DEVICE int count_turns(const Shared<G>& shared, const Params& p, const Place& at, int request,
                              QueryRange queries, RowCounts counts, const Share& share) {
  auto* sums = reinterpret_cast<int*>(shared.base + G::kPassesAt);
  auto* passes = reinterpret_cast<uint8_t*>(shared.base + G::kPassesAt + kWarps * 4);
  int total = 0;
  FATHOM_UNROLL_1
  for (int base = 0; base < share.tiles; base += kThreads / 16) {
    const int group = base + at.thread / 16;
    const bool real = group < share.tiles;
    const Column c = Column::load(p, request, queries, counts,
                                  real ? (share.first_tile + group) * 16 + at.thread % 16 : counts.total());
    int most = largest_of_16(c.different());
    if (most == 0) most = 1;
    if (base == 0 && at.thread % 16 == 0) passes[at.thread / 16] = static_cast<uint8_t>(real ? most : 1);
    if (real && at.thread % 16 == 0) total += most;
  }
  total += device::shuffle_xor(total, 16);
  if (at.lane == 0) sums[at.warp] = total;
  device::sync_block();
  total = 0;
  FATHOM_UNROLL
  for (int w = 0; w < kWarps; ++w) total += sums[w];
  return total;
}

/// Which columns tile `tile` of the first kRingTiles + 1 takes.
template <typename G>
FATHOM_DEVICE Turn turn_of(const Shared<G>& shared, int tile) {
  const auto* passes = reinterpret_cast<const uint8_t*>(shared.base + G::kPassesAt + kWarps * 4);
  Turn turn;
  for (; tile >= passes[turn.group]; ++turn.group) tile -= passes[turn.group];
  turn.pass = tile;
  return turn;
}

/// Writes a row that some query tokens see into the ring.
template <typename G>
FATHOM_DEVICE void describe_shared_row(const Shared<G>& shared, const Params& p, RowCounts counts, const Column& c,
                                       int column, int pass, int place) {
  uint32_t mask;
  const int slot = c.pick(pass, mask);
  describe_row<G>(shared, column < counts.window ? p.window : p.extra, slot, place);
  shared.row_bias()[place] = std::bit_cast<float>(mask);
}

}  // namespace fathom::ops::sparse_decode
