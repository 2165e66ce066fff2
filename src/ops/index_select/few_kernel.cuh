// Exact top-k where a token sees at most kFewEntries entries: every warp scores tiles of 16 entries, the last block of
// a token finds the k-th largest key by halving and writes what is chosen. Little code, each line of it executed about
// once: in a step it comes from memory, because the weights of a layer have displaced it from the caches.
#pragma once

#include "ops/index_select/score_kernel.cuh"

namespace fathom::ops::index_select {

inline constexpr int kFewTile = 16, kThreadEntries = kFewEntries / kThreads;

struct FewShared {
  Queries queries;
  uint32_t count[2][kWarps];
  uint32_t flag;
};

/// Sum of the warps' values, which are the same in all lanes of a warp; `turn` alternates.
FATHOM_DEVICE uint32_t sum_of_block(uint32_t v, int turn, FewShared& shared) {
  uint32_t* count = shared.count[turn];
  if (device::lane_index() == 0) count[device::warp_index()] = v;
  device::sync_block();
  uint32_t sum = 0;
  FATHOM_UNROLL
  for (int w = 0; w < kWarps; ++w) sum += count[w];
  return sum;
}

/// The k-th largest of the block's keys. `key`: key + 1, 0 where there is none.
FATHOM_DEVICE uint32_t kth_key(const uint32_t (&key)[kThreadEntries], uint32_t k, FewShared& shared) {
  uint32_t limit = 0;
  FATHOM_UNROLL_1
  for (int bit = 15; bit >= 0; --bit) {
    const uint32_t larger = limit | 1u << bit;
    uint32_t count = 0;
    FATHOM_UNROLL
    for (int i = 0; i < kThreadEntries; ++i) count += key[i] > larger;
    if (sum_of_block(device::sum_of_warp(count), bit & 1, shared) >= k) limit = larger;
  }
  return limit;
}

/// Chooses among all scores of the token. A thread has kThreadEntries neighbouring entries.
FATHOM_DEVICE void choose_few(const Params& p, int64_t t, const Keys& keys, FewShared& shared) {
  const int thread = device::thread_index(), lane = device::lane_index(), first = kThreadEntries * thread;
  const int32_t page = first / keys.page_rows, row = first - page * keys.page_rows;
  const int32_t slot = first < keys.visible ? keys.pages[page] * keys.page_rows + row : 0;
  uint32_t key[kThreadEntries];
  const auto* words = reinterpret_cast<const device::Float4*>(p.scores + t * kFewEntries + first);
  FATHOM_UNROLL
  for (int w = 0; w < kThreadEntries / 8; ++w) {
    const device::Float4 eight = device::load_l2(words + w);
    const float pair[4] = {eight.x, eight.y, eight.z, eight.w};
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t at = std::bit_cast<uint32_t>(pair[i / 2]) >> i % 2 * 16 & 0xFFFF;
      key[8 * w + i] = first + 8 * w + i < keys.visible ? at + 1 : 0;
    }
  }
  const auto k = static_cast<uint32_t>(p.a.topk);
  const uint32_t limit = kth_key(key, k, shared);
  uint32_t greater = 0, equal = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kThreadEntries; ++i) {
    greater |= static_cast<uint32_t>(key[i] > limit + 1) << i;
    equal |= static_cast<uint32_t>(key[i] == limit + 1) << i;
  }
  // What threads before this one have: greater ones in the low half, equal ones in the high half.
  const uint32_t own =
      static_cast<uint32_t>(device::count_bits(greater)) | static_cast<uint32_t>(device::count_bits(equal)) << 16;
  auto through = static_cast<int>(own);
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int other = device::shuffle_int(through, (lane - step) & 31);
    if (lane >= step) through += other;
  }
  const uint32_t all = sum_of_block(static_cast<uint32_t>(device::shuffle_int(through, 31)), 1, shared);
  uint32_t before = static_cast<uint32_t>(through) - own;
  for (int w = 0; w < device::warp_index(); ++w) before += shared.count[1][w];
  const auto equal_before = static_cast<int>(before >> 16), wanted = static_cast<int>(k - (all & 0xFFFF));
  int place = static_cast<int>(before & 0xFFFF) + (equal_before < wanted ? equal_before : wanted);
  int left = wanted - equal_before;  // equal ones that may still be chosen: the earlier entries
  FATHOM_UNROLL_1
  for (uint32_t rest = greater | equal; rest != 0; rest &= rest - 1) {
    const int i = device::lowest_bit(rest);
    if (equal >> i & 1 && left-- <= 0) continue;
    p.a.index(t, place++) = row + i < keys.page_rows ? slot + i : slot_of(keys, first + i);
  }
}

/// Grid (splits, tokens). Rows of keys at multiples of 16 bytes. Pages, sequences and what is visible are read before
/// the previous kernel has ended.
FATHOM_DEVICE void few_block(const Params& p, FewShared& shared) {
  const int split = device::block_x(), thread = device::thread_index(), lane = device::lane_index();
  const int64_t t = device::block_y();
  const Keys keys = keys_of(p.a, t);
  const int32_t k = p.a.topk, tiles = keys.visible <= k ? 0 : (keys.visible + kFewTile - 1) / kFewTile;
  int32_t tile = device::warp_index() * p.splits + split;
  RowPlace place = {0, 0};
  if (tile < tiles) place = place_row(keys, kFewTile * tile);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (split == 0 && thread == 0) p.a.length(t) = keys.visible < k ? keys.visible : k;
  if (tiles == 0) {
    for (int i = split * kThreads + thread; i < k; i += p.splits * kThreads)
      p.a.index(t, i) = i < keys.visible ? slot_of(keys, i) : -1;
    return;
  }
  Tile<1> rows;
  if (tile < tiles) load_tile<true>(keys, place, rows);
  load_queries(p.a, t, shared.queries);
  device::sync_block();
  const int head_tiles = (static_cast<int>(p.a.q.size[1]) + 15) / 16 * 2;
  FATHOM_UNROLL_1
  while (tile < tiles) {  // the same for a whole warp
    Rows<1> factors;
    spread_tile<1>(rows, factors);
    uint16_t* to = p.scores + t * kFewEntries + kFewTile * tile;
    tile += p.splits * kWarps;
    if (tile < tiles) load_tile<true>(keys, place_row(keys, kFewTile * tile), rows);
    const uint32_t key = score_rows<1>(factors, head_tiles, shared.queries);
    if (lane % 4 < 2) to[lane % 4 * 8 + lane / 4] = static_cast<uint16_t>(key);
  }
  device::fence();
  device::sync_block();
  if (thread == 0) {
    uint32_t& written = p.exchange[t].written;
    shared.flag = device::atomic_add(&written, 1u) + 1 == static_cast<uint32_t>(p.splits);
    if (shared.flag) written = 0;
    device::fence();
  }
  device::sync_block();
  if (shared.flag) choose_few(p, t, keys, shared);
}

}  // namespace fathom::ops::index_select
