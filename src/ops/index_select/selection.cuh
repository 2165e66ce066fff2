// What a block chooses with: a buffer of candidates in entry order, cut to the best k when it is full.
#pragma once

#include "ops/index_select/rank.cuh"
#include "ops/index_select/score_kernel.cuh"

namespace fathom::ops::index_select {

inline constexpr int kThreadKeys = kBufferKeys / kThreads;  // neighbouring candidates of a thread

/// What a block chooses with, in shared memory.
struct Selection {
  alignas(16) uint16_t buffer_key[kBufferKeys];
  alignas(16) uint32_t buffer_entry[kBufferKeys];
  uint32_t prefix[kMostSplits + 1];  // of the candidate lists
  uint32_t bins[kThreads];
  uint32_t bin, before_bin;
  Counts counts;
  Keys keys;
  uint32_t flag;
  uint32_t least;  // key that an entry must have to be kept
};

/// The same where a thread holds all the keys that it chooses from.
struct FewSelection {
  Counts counts;
  Keys keys;
  uint32_t flag;
};

/// This thread's keys of the first `count` in the buffer, plus one; 0 past the end.
FATHOM_DEVICE void own_keys(int count, const Selection& shared, uint32_t (&key)[kThreadKeys]) {
  const int first = kThreadKeys * device::thread_index();
  const auto words = *reinterpret_cast<const device::Words4*>(shared.buffer_key + first);
  FATHOM_UNROLL
  for (int i = 0; i < kThreadKeys; ++i) key[i] = first + i < count ? (words.word[i / 2] >> i % 2 * 16 & 0xFFFF) + 1 : 0;
}

/// kth_key() by counting in bins, of the upper byte and then of the lower one: two rounds instead of eight. Its first
/// sum has turn 1, the last one turn 0.
template <int kEach>
FATHOM_DEVICE uint32_t kth_key_by_bins(const uint32_t (&key)[kEach], uint32_t k, Selection& shared) {
  static_assert(kThreads == 256);
  const int thread = device::thread_index();
  uint32_t upper = 0;
  FATHOM_UNROLL_1
  for (int turn = 1;; turn = 0) {
    shared.bins[thread] = 0;
    device::sync_block();
    FATHOM_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const uint32_t v = key[i] - 1;
      if (key[i] != 0 && (turn == 1 || v >> 8 == upper))
        device::atomic_add(&shared.bins[turn == 1 ? v >> 8 : v & 255], 1u);
    }
    device::sync_block();
    const auto mine = static_cast<uint32_t>(kThreads - 1 - thread);
    const uint32_t here = shared.bins[mine];
    int all;
    const auto above = static_cast<uint32_t>(sum_before(static_cast<int>(here), turn, shared.counts, &all));
    if (above < k && k <= above + here) shared.bin = mine, shared.before_bin = above;
    device::sync_block();
    if (turn == 0) return upper << 8 | shared.bin;
    if (static_cast<uint32_t>(all) < k) return 0;
    upper = shared.bin, k -= shared.before_bin;
  }
}

/// Cuts a buffer of more than k candidates to the best k, in order; later ones must exceed the smallest key kept.
/// Without bins it takes fewer registers.
template <bool kBins = true>
FATHOM_DEVICE void cut_buffer(int count, int k, Selection& shared) {
  uint32_t key[kThreadKeys], entry[kThreadKeys];
  own_keys(count, shared, key);
  FATHOM_UNROLL
  for (int i = 0; i < kThreadKeys; i += 4) {
    const auto four =
        *reinterpret_cast<const device::Words4*>(shared.buffer_entry + kThreadKeys * device::thread_index() + i);
    FATHOM_UNROLL
    for (int j = 0; j < 4; ++j) entry[i + j] = four.word[j];
  }
  const auto rank = static_cast<uint32_t>(k);
  const uint32_t limit = kBins ? kth_key_by_bins(key, rank, shared) : kth_key(key, rank, shared.counts);
  const Picked picked = pick(key, limit, static_cast<uint32_t>(k), shared.counts);
  int to = picked.place;
  FATHOM_UNROLL
  for (int i = 0; i < kThreadKeys; ++i) {  // all have read, long ago
    if (!(picked.keys >> i & 1)) continue;
    shared.buffer_key[to] = static_cast<uint16_t>(key[i] - 1), shared.buffer_entry[to++] = entry[i];
  }
  if (device::thread_index() == 0) shared.least = limit + 1;
  device::sync_block();
}

/// Appends the keys that are to be kept, kEach neighbouring ones a thread, to the buffer in order; returns the new
/// count. The buffer is whole once the block has met again.
template <int kEach>
FATHOM_DEVICE int append(int count, const uint32_t (&key)[kEach], const uint32_t (&entry)[kEach],
                         const bool (&keep)[kEach], Selection& shared) {
  const uint32_t before = (1u << device::lane_index()) - 1;
  uint32_t mine = 0, all = 0;
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const uint32_t kept = device::ballot(keep[i]);
    mine += static_cast<uint32_t>(device::count_bits(kept & before));
    all += static_cast<uint32_t>(device::count_bits(kept));
  }
  uint32_t earlier_warps;
  const auto total = static_cast<int>(sum_of_block(all, 0, shared.counts, &earlier_warps));
  int at = count + static_cast<int>(earlier_warps + mine);
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (!keep[i]) continue;
    shared.buffer_key[at] = static_cast<uint16_t>(key[i]), shared.buffer_entry[at++] = entry[i];
  }
  return count + total;
}
/// The same with the keys of a chunk, of entries from `first` on, that may still be chosen. The chunk has then been
/// read.
template <int kEach>
FATHOM_DEVICE int append_chunk(int count, int32_t first, int32_t end, const uint16_t* chunk, Selection& shared) {
  const uint32_t least = shared.least;
  uint32_t key[kEach], entry[kEach];
  bool keep[kEach];
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int at = kEach * device::thread_index() + i;
    key[i] = chunk[at], entry[i] = static_cast<uint32_t>(first + at);
    keep[i] = first + at < end && key[i] >= least;
  }
  return append(count, key, entry, keep, shared);
}

/// Writes the best k of the buffer, which holds at least so many.
FATHOM_DEVICE void write_chosen(const Params& p, int64_t t, int count, Selection& shared) {
  if (count > p.a.topk) cut_buffer(count, p.a.topk, shared);
  for (int i = device::thread_index(); i < p.a.topk; i += kThreads)
    p.a.index(t, i) = slot_of(shared.keys, static_cast<int32_t>(shared.buffer_entry[i]));
}

}  // namespace fathom::ops::index_select
