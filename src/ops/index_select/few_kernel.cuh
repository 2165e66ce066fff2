// Exact top-k where a token sees at most 16,384 entries: the blocks of a token write the keys to memory, two bytes
// each, the last one chooses. In a step the code comes from memory, because the weights of a layer have displaced it
// from the caches: each line of it is executed about once.
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

/// A thread's neighbouring entries where a token sees more: a multiple of 8, at most 64.
inline constexpr int kMostWords = kManyEntries / kThreads / 32;
struct Span {
  const uint16_t* keys;
  int first, count, visible;
};
FATHOM_DEVICE Span span_of(const uint16_t* scores, int32_t visible) {
  const int count = (visible + 8 * kThreads - 1) / (8 * kThreads) * 8, first = count * device::thread_index();
  return {scores + first, first, count, visible};
}
/// Keys `at` to at + 31 of the span, two a word; 0 where there is none.
FATHOM_DEVICE void load_keys(const Span& span, int at, uint32_t (&word)[16]) {
  FATHOM_UNROLL
  for (int j = 0; j < 4; ++j) {
    const int left = at + 8 * j < span.count ? span.visible - (span.first + at + 8 * j) : 0;  // keys from here on
    device::Float4 v = {};
    if (left > 0) v = device::load_l2(reinterpret_cast<const device::Float4*>(span.keys + at + 8 * j));
    const float part[4] = {v.x, v.y, v.z, v.w};
    FATHOM_UNROLL
    for (int w = 0; w < 4; ++w)
      word[4 * j + w] = std::bit_cast<uint32_t>(part[w]) & (left > 2 * w + 1 ? ~0u : left > 2 * w ? 0xFFFFu : 0u);
  }
}
/// Bit i of word w: key 32 w + i is at least `limit`, which is not 0. Returns how many are.
FATHOM_DEVICE int mark(const Span& span, uint32_t limit, uint32_t (&marks)[kMostWords]) {
  int count = 0;
  FATHOM_UNROLL
  for (int w = 0; w < kMostWords; ++w) {
    marks[w] = 0;
    if (32 * (w & ~1) >= span.count) continue;  // two words on their way at once
    uint32_t word[16];
    load_keys(span, 32 * w, word);
    FATHOM_UNROLL
    for (int i = 0; i < 32; ++i) marks[w] |= (i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xFFFF) >= limit ? 1u << i : 0;
    count += device::count_bits(marks[w]);
  }
  return count;
}
/// Calls use(entry) for each mark, in order.
template <typename Use>
FATHOM_DEVICE void each_marked(const Span& span, const uint32_t (&marks)[kMostWords], const Use& use) {
  FATHOM_UNROLL
  for (int w = 0; w < kMostWords; ++w) {
    FATHOM_UNROLL_1
    for (uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) use(span.first + 32 * w + device::lowest_bit(rest));
  }
}
/// The k-th largest of all keys: 16 halvings.
FATHOM_DEVICE uint32_t kth_of_many(const Span& span, int k, Counts& counts) {
  uint32_t limit = 0, marks[kMostWords];
  FATHOM_UNROLL_1
  for (int bit = 15; bit >= 0; --bit) {
    const uint32_t larger = limit | 1u << bit, mine = static_cast<uint32_t>(mark(span, larger, marks));
    if (sum_of_block(device::sum_of_warp(mine), bit & 1, counts) >= static_cast<uint32_t>(k)) limit = larger;
  }
  return limit;
}

/// Chooses among all keys of the token, at most kManyEntries. The largest keys of 2,048 groups come first: k of them
/// reach a key that therefore k entries reach, and hardly more entries do.
FATHOM_DEVICE void choose_many(const Params& p, int64_t t, Selection& shared) {
  const int thread = device::thread_index(), k = p.a.topk;
  const Keys& keys = shared.keys;
  const uint16_t* scores = p.keys + t * p.keys_each;
  const Span span = span_of(scores, keys.visible);
  uint32_t most[4] = {}, group[8];
  FATHOM_UNROLL_1
  for (int at = 0; at < span.count; at += 64) {
    uint32_t word[2][16];  // on their way at once
    load_keys(span, at, word[0]), load_keys(span, at + 32, word[1]);
    FATHOM_UNROLL
    for (int w = 0; w < 32; ++w) most[w % 4] = device::largest_halves(most[w % 4], word[w / 16][w % 16]);
  }
  FATHOM_UNROLL
  for (int w = 0; w < 8; ++w) group[w] = (most[w / 2] >> w % 2 * 16 & 0xFFFF) + 1;
  uint32_t least = kth_key(group, static_cast<uint32_t>(k), shared.counts), marks[kMostWords];
  least = least == 0 ? 1 : least;
  int found, at = sum_before(mark(span, least, marks), 1, shared.counts, &found);
  int place;
  if (found <= kBufferKeys) {
    each_marked(span, marks, [&](int entry) { shared.buffer_entry[at++] = static_cast<uint32_t>(entry); });
    device::sync_block();
    uint32_t key[kBufferKeys / kThreads], entry[kBufferKeys / kThreads];
    FATHOM_UNROLL
    for (int i = 0; i < kBufferKeys / kThreads; ++i) {
      const int mine = kBufferKeys / kThreads * thread + i;
      entry[i] = mine < found ? shared.buffer_entry[mine] : 0;
      key[i] = mine < found ? scores[entry[i]] + 1u : 0;
    }
    const Picked picked = pick_best(key, static_cast<uint32_t>(k), shared.counts);
    place = picked.place;
    FATHOM_UNROLL
    for (int i = 0; i < kBufferKeys / kThreads; ++i)
      if (picked.keys >> i & 1) p.a.index(t, place++) = slot_of(keys, static_cast<int32_t>(entry[i]));
    return;
  }
  // Many equal keys.
  device::sync_block();
  const uint32_t limit = kth_of_many(span, k, shared.counts);
  int greater, all;
  const int greater_before = sum_before(mark(span, limit + 1, marks), 1, shared.counts, &greater);
  int equal_before = sum_before(mark(span, limit, marks), 0, shared.counts, &all) - greater_before;
  const int wanted = k - greater;
  place = greater_before + (equal_before < wanted ? equal_before : wanted);
  each_marked(span, marks, [&](int entry) {
    if (scores[entry] > limit || equal_before++ < wanted) p.a.index(t, place++) = slot_of(keys, entry);
  });
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
