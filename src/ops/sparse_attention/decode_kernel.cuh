// The decode kernel: one block of 8 warps = (token, group of heads, split of the rows).
//
// The walk over tiles is a pipeline of three steps with one barrier an interval: in interval i the block computes the
// scores of tile i, the softmax of tile i-1 and the output of tile i-2, none of which depend on each other. The two
// warps that share a scheduler do them in opposite order, so that one fills the tensor cores while the other is busy
// with exponents and shared memory. Rows arrive by cp.async, kStages tiles deep.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_combine.cuh"
#include "ops/sparse_attention/decode_compute.cuh"
#include "ops/sparse_attention/decode_output.cuh"
#include "ops/sparse_attention/decode_packed.cuh"
#include "ops/sparse_attention/decode_rows.cuh"

namespace fathom::ops::sparse_decode {

/// The rows of this block and the state of their prefetch.
template <typename G>
struct Walk {
  RowCounts counts;
  Share share;
  int token;
  int next_slot = -1;  // in the last warp: of lane's row in the tile to be described next

  FATHOM_DEVICE int row_of(int tile, int row) const { return (share.first_tile + tile) * G::kTileRows + row; }
};

/// The same of the query tokens of a request; `share` counts tiles, whose columns the turns tell.
template <typename G>
struct RequestWalk {
  RowCounts counts;
  Share share;
  int request, first_group;
  QueryRange queries;
  Turn turn;  // in the last warp: of the tile to be described next

  FATHOM_DEVICE int column_of(int group, int lane) const { return (first_group + group) * G::kTileRows + lane; }
};

/// Counts the block's tiles and describes the first ones.
template <typename G>
FATHOM_DEVICE RequestWalk<G> begin_request(const Shared<G>& shared, const Params& p, const Place& place, int request,
                                           int split, int splits, int first_head) {
  const QueryRange queries(p, first_head, G::kHeads);
  const RowCounts counts = most_counts(p, request, queries);
  RequestWalk<G> walk{counts, share_of_token(p, counts, G::kTileRows, splits, split), request, 0, queries, {}};
  walk.first_group = walk.share.first_tile;
  if (split >= walk.share.blocks) return walk;
  walk.share.tiles = count_turns<G>(shared, p, place, request, queries, counts, walk.share);
  const int tile = place.thread / G::kTileRows, row = place.thread % G::kTileRows;
  if (tile < kRingTiles && tile < walk.share.tiles) {
    const Turn turn = turn_of(shared, tile);
    const int column = walk.column_of(turn.group, row);
    describe_shared_row<G>(shared, p, counts, Column::load(p, request, queries, counts, column), column, turn.pass,
                           ring_place<G>(tile, row));
  }
  if (place.warp == kWarps - 1 && walk.share.tiles > kRingTiles) walk.turn = turn_of(shared, kRingTiles);
  return walk;
}

/// Interval `interval`, in the last warp: describes the tile that is copied next.
template <typename G>
FATHOM_DEVICE void advance_walk(const Shared<G>& shared, const Params& p, RequestWalk<G>& walk, int interval,
                                int lane) {
  const int tile = interval + G::kStages - 2, row = lane % G::kTileRows;
  if (tile < kRingTiles || tile >= walk.share.tiles) return;
  const int column = walk.column_of(walk.turn.group, row);
  // Not a tile ahead: a tile of so many heads takes longer than this load, and registers are few.
  const Column c = Column::load(p, walk.request, walk.queries, walk.counts, column);
  if (lane < G::kTileRows)
    describe_shared_row<G>(shared, p, walk.counts, c, column, walk.turn.pass, ring_place<G>(tile, row));
  if (++walk.turn.pass < largest_of_16(c.different())) return;
  walk.turn = {walk.turn.group + 1, 0};
}

/// Reads the lengths and the first indices. The indices are first read as if the token had all its rows, so that the
/// common case does not wait for the lengths before it can load indices. The queries are asked for behind them.
template <typename G>
FATHOM_DEVICE Walk<G> begin_walk(const Shared<G>& shared, const Params& p, const Place& place, int token, int split,
                                 int splits, int first_head, RawQuery<G>& query) {
  const int thread = place.thread;
  const RowCounts all{p.window.most, p.extra.most};
  const Share guess = share_of_token(p, all, G::kTileRows, splits, split);
  const bool describes = thread < kRingTiles * G::kTileRows;
  const int guessed_row = guess.first_tile * G::kTileRows + thread;
  int slot = describes && thread < guess.tiles * G::kTileRows ? load_slot(p, token, all, guessed_row) : -1;

  Walk<G> walk{{clamp_length(p.window, token), clamp_length(p.extra, token)}, {}, token};
  load_query<G>(p, place, token, first_head, 0, query);
  load_query<G>(p, place, token, first_head, 1, query);
  walk.share = share_of_token(p, walk.counts, G::kTileRows, splits, split);
  if (walk.share.tiles > kRingTiles) prefetch_indices(p, token, walk.counts, walk.row_of(kRingTiles, 0));
  if (!describes || thread >= walk.share.tiles * G::kTileRows) return walk;
  const int row = walk.row_of(0, thread);
  if (walk.counts.window != all.window || walk.counts.extra != all.extra) slot = load_slot(p, token, walk.counts, row);
  describe_row<G>(shared, row < walk.counts.window ? p.window : p.extra, slot,
                  ring_place<G>(thread / G::kTileRows, thread % G::kTileRows));
  return walk;
}

/// Interval `interval`: describe the tile that is copied next, read the indices of the one after.
template <typename G>
FATHOM_DEVICE void advance_walk(const Shared<G>& shared, const Params& p, Walk<G>& walk, int interval, int thread) {
  if (thread >= G::kTileRows) return;
  const int tile = interval + G::kStages - 2;
  if (tile >= kRingTiles && tile < walk.share.tiles) {
    const int row = walk.row_of(tile, thread);
    describe_row<G>(shared, row < walk.counts.window ? p.window : p.extra, walk.next_slot, ring_place<G>(tile, thread));
  }
  if (tile + 1 >= kRingTiles && tile + 1 < walk.share.tiles)
    walk.next_slot = load_slot(p, walk.token, walk.counts, walk.row_of(tile + 1, thread));
}

/// Scores, softmax and output of all tiles of the block.
template <typename G, typename W>
FATHOM_DEVICE void walk_tiles(const Shared<G>& shared, const Place& place, const Params& p, W& walk,
                              const Query<G>& query, SoftmaxState& softmax, Output<G>& output) {
  const Offsets<G> at(place);
  const bool exponents_last = place.warp < kWarps / 2;
  const int tiles = walk.share.tiles;
  int stage = 0;                     // of tile i
  int value_stage = G::kStages - 2;  // of tile i - 2
  const auto next = [](int& s) { s = s == G::kStages - 1 ? 0 : s + 1; };
  FATHOM_UNROLL_1
  for (int i = 0; i < tiles + 2; ++i, next(stage), next(value_stage)) {
    if (i < G::kStages)
      device::copy_async_wait<G::kStages - 1>();
    else
      device::copy_async_wait<G::kStages - 4>();
    device::sync_block();
    const int incoming = i + G::kStages - 3, parity = i & 1;
    if (incoming >= G::kStages && incoming < tiles)
      start_tile<G>(shared, p.q, incoming, value_stage == 0 ? G::kStages - 1 : value_stage - 1);
    device::copy_async_commit();
    if (place.warp == kWarps - 1) advance_walk<G>(shared, p, walk, i, place.lane);
    const bool exponents = i >= 1 && i <= tiles;
    if (exponents && !exponents_last) softmax_tile<G>(shared, place, at, p, i - 1, parity ^ 1, softmax);
    if (i < tiles) score_tile<G>(shared, place, at, query, shared.stage(stage), parity);
    if (i >= 2) value_tile<G>(shared, place, at, shared.stage(value_stage), parity, output);
    if (exponents && exponents_last) softmax_tile<G>(shared, place, at, p, i - 1, parity ^ 1, softmax);
  }
}

/// Adds up the denominators of the lanes of a head and stores (reference, sum).
template <typename G>
FATHOM_DEVICE void store_state(SoftmaxState softmax, float* state) {
  const int thread = device::thread_index();
  FATHOM_UNROLL
  for (int mask = 1; mask < G::kLanesPerHead; mask *= 2) softmax.sum += device::shuffle_xor(softmax.sum, mask);
  if (thread % G::kLanesPerHead == 0) {
    state[2 * (thread / G::kLanesPerHead)] = softmax.reference;
    state[2 * (thread / G::kLanesPerHead) + 1] = softmax.sum;
  }
}

/// Leaves the block's part of its unit, whose states lie in shared memory.
template <typename G>
FATHOM_DEVICE void leave_partial(const Shared<G>& shared, const Partials<G>& partials, int split, Output<G>& output) {
  if (device::thread_index() < 2 * G::kHeads)
    partials.state(split)[device::thread_index()] = shared.state()[device::thread_index()];
  if (slice_is_fp8(G::kFormat, device::thread_index() / 32))
    store_quads<G, true>(shared, partials, split, output);
  else
    store_quads<G, false>(shared, partials, split, output);
}

FATHOM_DEVICE int this_unit() {
  return device::block_z() * device::grid_y() + device::block_y();
}

/// One thread: the unit's count of arrivals before this block's own; and puts it into shared memory, later, when
/// nothing waits for the load any more.
FATHOM_DEVICE uint64_t arrivals_before(const Params& p) {
  return device::load_relaxed(p.arrivals + this_unit());
}
template <typename G>
FATHOM_DEVICE void remember_arrivals(const Shared<G>& shared, uint64_t before) {
  *reinterpret_cast<uint64_t*>(shared.flags() + 2) = before;
}

/// Meets the other splits of the unit and does this block's part of the final sum.
template <typename G>
FATHOM_DEVICE void meet(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head, int blocks) {
  device::sync_block();
  if (device::thread_index() == 0) {
    const uint64_t before = *reinterpret_cast<const uint64_t*>(shared.flags() + 2);
    shared.flags()[0] = arrive(partials.p, this_unit(), device::block_x(), blocks, before);
  }
  device::sync_block();
  if (device::thread_index() >= kThreads) return;
  FATHOM_UNROLL_1
  for (uint32_t parts = shared.flags()[0]; parts; parts &= parts - 1)
    combine_part<G>(shared, partials, token, first_head, blocks, device::lowest_bit(parts), blocks);
}

/// From the states in shared memory, which every thread may read, and the output of each warp. Has no other split: the
/// whole output. Has some: leaves its partial result and meets them.
template <typename G>
FATHOM_DEVICE void finish(const Shared<G>& shared, const Params& p, int blocks, Output<G>& output) {
  const int token = device::block_z(), first_head = device::block_y() * G::kHeads;
  if (blocks == 1) {
    store_direct<G>(shared, p, token, first_head, output);
  } else {
    const Partials<G> partials{p, this_unit()};
    leave_partial<G>(shared, partials, device::block_x(), output);
    meet<G>(shared, partials, token, first_head, blocks);
  }
}

/// The block's whole work. The grid is (splits, groups of heads, tokens).
template <typename G>
FATHOM_DEVICE void decode_block(const Params& p, std::byte* shared_base) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const Shared<G> shared{shared_base};
  const Place place;
  const int split = device::block_x(), splits = device::grid_x(), token = device::block_z();
  const int first_head = device::block_y() * G::kHeads;

  RawQuery<G> raw;
  SoftmaxState softmax;
  auto walk = [&] {
    if constexpr (kTakesRequests<G>) {
      load_query<G>(p, place, token, first_head, 0, raw);
      load_query<G>(p, place, token, first_head, 1, raw);
      softmax.query = (first_head + place.thread / G::kLanesPerHead) / p.each_heads;
      return begin_request<G>(shared, p, place, token, split, splits, first_head);
    } else {
      return begin_walk<G>(shared, p, place, token, split, splits, first_head, raw);
    }
  }();
  const int blocks = walk.share.blocks;
  if (split >= blocks) return;
  device::sync_block();
  ask_for_sinks<G>(shared, p, first_head);
  FATHOM_UNROLL_1
  for (int tile = 0; tile < G::kStages; ++tile) {
    if (tile < walk.share.tiles) start_tile<G>(shared, p.q, tile, tile);
    device::copy_async_commit();
  }
  if (blocks > 1 && place.thread == 0) remember_arrivals(shared, arrivals_before(p));
  if constexpr (kTakesRequests<G>) {
    if (p.position && place.warp < p.queries)
      prepare_rotations<G>(shared, p, token * p.queries + place.warp, place.lane, 32 * place.warp);
  } else {
    if (p.position && place.warp == 1) prepare_rotations<G>(shared, p, token, place.lane);
  }
  Query<G> query;
  arrange_query<G>(place, raw, query);
  Output<G> output;
  if (!slice_is_fp8(G::kFormat, place.warp)) output.unit = kBf16Unit;
  walk_tiles<G>(shared, place, p, walk, query, softmax, output);
  device::copy_async_wait<0>();
  store_state<G>(softmax, shared.state());
  device::sync_block();
  finish<G>(shared, p, blocks, output);
}

}  // namespace fathom::ops::sparse_decode
