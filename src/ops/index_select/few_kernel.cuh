// Exact top-k where a token sees at most 16,384 entries, by warpgroups 262,144: the blocks of a token write the keys to
// memory, two bytes each, the last one chooses. In a step the code comes from memory, because the weights of a layer
// have displaced it from the caches: each line of it is executed about once.
#pragma once

#include "ops/index_select/score_kernel.cuh"
#include "ops/index_select/selection.cuh"

namespace fathom::ops::index_select {

/// Chooses among all keys of the token, at most kFewEntries: a thread has 16 neighbouring ones.
template <typename Choice>
FATHOM_DEVICE void choose_few(const Params& p, int64_t t, Choice& shared) {
  constexpr int kThreadEntries = kFewEntries / kThreads;
  const Keys& keys = shared.keys;
  const int first = kThreadEntries * device::thread_index();
  const int32_t page = first / keys.page_rows, row = first - page * keys.page_rows;
  const int32_t slot = first < keys.visible ? keys.pages[page] * keys.page_rows + row : 0;
  uint32_t key[kThreadEntries];
  const auto* words = reinterpret_cast<const device::Float4*>(p.keys + t * p.keys_each + first);
  FATHOM_UNROLL
  for (int w = 0; w < kThreadEntries / 8; ++w) {
    device::Float4 eight = {};
    if (first + 8 * w < keys.visible) eight = device::load_l2(words + w);
    const float pair[4] = {eight.x, eight.y, eight.z, eight.w};
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t at = std::bit_cast<uint32_t>(pair[i / 2]) >> i % 2 * 16 & 0xFFFF;
      key[8 * w + i] = first + 8 * w + i < keys.visible ? at + 1 : 0;
    }
  }
  const Picked picked = pick_best(key, static_cast<uint32_t>(p.a.topk), shared.counts);
  int place = picked.place;
  FATHOM_UNROLL_1
  for (uint32_t rest = picked.keys; rest != 0; rest &= rest - 1) {
    const int i = device::lowest_bit(rest);
    p.a.index(t, place++) = row + i < keys.page_rows ? slot + i : slot_of(keys, first + i);
  }
}

/// 64 keys of a thread, two a word, in eights; 0 where there is none.
using ManyKeys = uint32_t[32];
inline constexpr int kMostMany = 64, kMostTiles = kThreads * kMostMany / kWideRows;
static_assert(kManyEntries == kThreads * kMostMany);
/// Where they lie: 16 numbers each from `number` on, `eights` times 8 in all.
struct ManyPlaces {
  const uint16_t* keys;
  int number[kMostMany / 16], eights;
};
FATHOM_DEVICE void load_keys(const ManyPlaces& at, ManyKeys& word) {
  FATHOM_UNROLL
  for (int j = 0; j < kMostMany / 8; ++j) {
    device::Float4 v = {};
    if (j < at.eights)
      v = device::load_l2(reinterpret_cast<const device::Float4*>(at.keys + at.number[j / 2] + j % 2 * 8));
    const float part[4] = {v.x, v.y, v.z, v.w};
    FATHOM_UNROLL
    for (int w = 0; w < 4; ++w) word[4 * j + w] = std::bit_cast<uint32_t>(part[w]);
  }
}
/// A key that at least k of all keys reach and hardly more do, from the largest keys of 2,048 groups; at least 1.
FATHOM_DEVICE uint32_t reached_by_groups(const ManyKeys& word, int k, Selection& shared) {
  uint32_t most[4] = {}, group[8];
  FATHOM_UNROLL
  for (int w = 0; w < 32; ++w) most[w % 4] = device::largest_halves(most[w % 4], word[w]);
  FATHOM_UNROLL
  for (int w = 0; w < 8; ++w) group[w] = (most[w / 2] >> w % 2 * 16 & 0xFFFF) + 1;
  const uint32_t least = kth_key_by_bins(group, static_cast<uint32_t>(k), shared);
  return least == 0 ? 1 : least;
}

/// Where many keys are equal: all of them once more, as a stream. `least` is reached by at least k.
FATHOM_DEVICE void choose_among_equal(const Params& p, int64_t t, const uint16_t* scores, uint32_t least,
                                      Selection& shared) {
  constexpr int kEach = 4, kRound = kEach * kThreads, kAhead = 4;
  const int thread = device::thread_index();
  const int32_t visible = shared.keys.visible;
  device::sync_block();
  if (thread == 0) shared.least = least;
  device::sync_block();
  int count = 0;
  FATHOM_UNROLL_1
  for (int base = 0; base < visible; base += kAhead * kRound) {
    uint64_t four[kAhead];
    FATHOM_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int at = base + i * kRound + kEach * thread;
      four[i] = at < visible ? device::load_l2(reinterpret_cast<const uint64_t*>(scores + at)) : 0;
    }
    FATHOM_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int at = base + i * kRound + kEach * thread;
      uint32_t key[kEach], entry[kEach];
      bool keep[kEach], any = false;
      const uint32_t limit = shared.least;
      FATHOM_UNROLL
      for (int j = 0; j < kEach; ++j) {
        key[j] = static_cast<uint32_t>(four[i] >> 16 * j) & 0xFFFF, entry[j] = static_cast<uint32_t>(at + j);
        any |= keep[j] = at + j < visible && key[j] >= limit;
      }
      if (!device::any_thread(any)) continue;
      if (count + kRound > kBufferKeys) {
        cut_buffer(count, p.a.topk, shared), count = p.a.topk;
        FATHOM_UNROLL
        for (int j = 0; j < kEach; ++j) keep[j] = keep[j] && key[j] >= shared.least;
      }
      count = append(count, key, entry, keep, shared);
    }
  }
  device::sync_block();
  write_chosen(p, t, count, shared);
}

/// Chooses among all keys of the token, at most kManyEntries; or among those of as many tiles of 16, whose largest keys
/// are there: then the tiles come first, with the same instructions.
FATHOM_DEVICE void choose_many(const Params& p, int64_t t, Selection& shared) {
  const int thread = device::thread_index(), k = p.a.topk;
  const int32_t visible = shared.keys.visible, tiles = (visible + kWideRows - 1) / kWideRows;
  uint16_t *const scores = p.keys + t * p.keys_each, *const largest = p.largest + t * (p.keys_each / kWideRows);
  bool by_tiles = visible > kManyEntries;
  // Zeros behind the last ones.
  if (thread < tiles * kWideRows - visible) scores[visible + thread] = 0;
  if (by_tiles && thread < (-tiles & 7)) largest[tiles + thread] = 0;
  device::sync_block();
  ManyPlaces at;
  const int eights = ((by_tiles ? tiles : visible) + 7) / 8, each = (eights + kThreads - 1) / kThreads;
  const int left = eights - each * thread;
  at.keys = by_tiles ? largest : scores, at.eights = left < each ? left : each;
  FATHOM_UNROLL
  for (int i = 0; i < kMostMany / 16; ++i) at.number[i] = 8 * each * thread + 16 * i;
  uint32_t least = 0;
  int found;
  FATHOM_UNROLL_1
  for (;; by_tiles = false) {
    ManyKeys word;
    load_keys(at, word);
    if (least == 0) least = reached_by_groups(word, k, shared);
    uint32_t marks[2] = {};
    const uint32_t upper = least << 16;
    FATHOM_UNROLL
    for (int i = 0; i < 32; ++i) {
      if (word[i] << 16 >= upper) marks[i / 16] |= 1u << i % 16 * 2;
      if (word[i] >= upper) marks[i / 16] |= 2u << i % 16 * 2;
    }
    int place = sum_before(device::count_bits(marks[0]) + device::count_bits(marks[1]), 1, shared.counts, &found);
    if (found > (by_tiles ? kMostTiles : kBufferKeys)) return choose_among_equal(p, t, scores, least, shared);
    FATHOM_UNROLL
    for (int w = 0; w < 2; ++w) {
      FATHOM_UNROLL_1
      for (uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) {
        const int bit = device::lowest_bit(rest);
        shared.buffer_entry[place++] =
            static_cast<uint32_t>((bit < 16 ? at.number[2 * w] : at.number[2 * w + 1]) + bit % 16);
      }
    }
    device::sync_block();
    if (!by_tiles) break;
    const int mine = (found + kThreads - 1) / kThreads, first = mine * thread, rest = found - first;
    at.keys = scores, at.eights = 2 * (rest < mine ? rest : mine);
    FATHOM_UNROLL
    for (int i = 0; i < kMostMany / 16; ++i)
      at.number[i] = 2 * i < at.eights ? kWideRows * static_cast<int>(shared.buffer_entry[first + i]) : 0;
  }
  FATHOM_UNROLL
  for (int i = 0; i < kThreadKeys; ++i) {
    const int mine = i * kThreads + thread;
    if (mine < found) shared.buffer_key[mine] = scores[shared.buffer_entry[mine]];
  }
  device::sync_block();
  write_chosen(p, t, found, shared);
}

/// Blocks of a token that have something to do: each takes 16 entries a warp at a time.
FATHOM_DEVICE int few_blocks(const Params& p, int32_t visible) {
  constexpr int kEntries = 16 * kWarps;
  const int wanted = (visible + kEntries - 1) / kEntries;
  return wanted < p.splits ? wanted : p.splits;
}
/// The block's share of the keys, then the choice by the last block. `blocks`: few_blocks().
template <typename Scan>
FATHOM_DEVICE void select_few(const Params& p, int64_t t, int blocks, const typename Scan::First& first, Scan& scan) {
  auto& shared = scan.choice;
  scan.write_keys(p, t, blocks, first, p.keys + t * p.keys_each);
  device::fence();
  device::sync_block();
  if (device::thread_index() == 0) {
    uint32_t& written = p.exchange[t].written;
    shared.flag = device::atomic_add(&written, 1u) + 1 == static_cast<uint32_t>(blocks);
    if (shared.flag) written = 0;
    device::fence();
  }
  device::sync_block();
  if (!shared.flag) return;
  if (Scan::kMostFew <= kFewEntries || shared.keys.visible <= kFewEntries) return choose_few(p, t, shared);
  if constexpr (Scan::kMostFew > kFewEntries) choose_many(p, t, shared);
}

}  // namespace fathom::ops::index_select
