// Exact top-k over the scores of a token's entries: one block, or several that share them.
//
// Up to some ten thousand entries, by warpgroups some hundred thousand, all keys are written and the last block chooses
// (few_kernel.cuh). More are a stream: a block scores its entries some hundred at a time and keeps those that can still
// be chosen in a buffer, in entry order. A full buffer is cut to its best k (ties: the earlier entry), whose smallest
// key later entries must exceed; so memory does not grow with the context. Of blocks that share a token, each tells the
// others which key a certain number of its candidates reach, and waits a bounded time for theirs: from them follows a
// key that k candidates reach. What lies below is dropped, whoever else is late. The last block to finish chooses
// exactly among what is left.
#pragma once

#include "ops/index_select/few_kernel.cuh"

namespace fathom::ops::index_select {

/// A key, plus one, that at least k candidates of the token reach; 1: not known. `told`: of the blocks i and i + 256
/// for thread i, the key, plus one, that `rank` of their candidates reach.
FATHOM_DEVICE uint32_t reached_by_k(const Params& p, const uint32_t (&told)[kMostSplits / kThreads],
                                    Selection& shared) {
  const int blocks = (p.a.topk + p.rank - 1) / p.rank;  // they have k together
  return kth_key(told, static_cast<uint32_t>(blocks), shared.counts) + 1;
}

/// Tells the other blocks of the token which key `rank` of this block's candidates reach, waits a while for what they
/// tell. Returns the key, plus one, that a candidate must have.
FATHOM_DEVICE uint32_t find_least(const Params& p, int64_t t, int split, int count, Selection& shared) {
  const int thread = device::thread_index();
  uint32_t key[kThreadKeys];
  own_keys(count, shared, key);
  const uint32_t reached = count < p.rank ? 0 : kth_key(key, static_cast<uint32_t>(p.rank), shared.counts) + 1;
  Exchange& e = p.exchange[t];
  if (thread == 0) device::atomic_add(&e.reached[split], reached + 1);  // word and signal in one
  const int64_t until = device::cycles() + p.patience;
  uint32_t told[kMostSplits / kThreads] = {};
  FATHOM_UNROLL
  for (int i = 0; i < kMostSplits / kThreads; ++i) {
    const int at = thread + i * kThreads;
    if (at >= p.splits) continue;
    uint32_t word;
    while ((word = device::load_acquire(&e.reached[at])) == 0 && device::cycles() < until) device::rest();
    told[i] = word == 0 ? 0 : word - 1;
  }
  return reached_by_k(p, told, shared);
}

/// Writes this block's candidates, at most k, whose key, plus one, is at least `least`; says whether this block is
/// the last to do so.
FATHOM_DEVICE bool write_candidates(const Params& p, int64_t t, int split, int count, uint32_t least,
                                    Selection& shared) {
  const auto k = static_cast<uint32_t>(p.a.topk);
  uint32_t key[kThreadKeys];
  own_keys(count, shared, key);
  Picked picked = pick(key, least - 2, 0, shared.counts);  // key + 1 > least - 1
  if (picked.all > p.a.topk) {
    device::sync_block();
    picked = pick_best(key, k, shared.counts);
  }
  Candidate* to = p.candidates + (t * p.splits + split) * p.a.topk + picked.place;
  FATHOM_UNROLL
  for (int i = 0; i < kThreadKeys; ++i)
    if (picked.keys >> i & 1) *to++ = {key[i] - 1, shared.buffer_entry[kThreadKeys * device::thread_index() + i]};
  if (device::thread_index() == 0) p.counts[t * p.splits + split] = static_cast<uint32_t>(picked.all);
  device::fence();
  device::sync_block();
  if (device::thread_index() == 0) {
    shared.flag = device::atomic_add(&p.exchange[t].written, 1u) + 1 == static_cast<uint32_t>(p.splits);
    device::fence();
  }
  device::sync_block();
  return shared.flag != 0;
}

/// Number of the candidate list that holds element i: the last with prefix <= i.
FATHOM_DEVICE int list_of(const uint32_t* prefix, int splits, uint32_t i) {
  int low = 0, high = splits;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (prefix[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Prefix sums of the lists' lengths, which thread i has of the lists 2 i and 2 i + 1.
FATHOM_DEVICE void sum_lengths(const uint32_t (&length)[2], Selection& shared) {
  static_assert(kMostSplits <= 2 * kThreads);
  const int thread = device::thread_index();
  int all;
  const auto before =
      static_cast<uint32_t>(sum_before(static_cast<int>(length[0] + length[1]), 1, shared.counts, &all)) + length[0];
  shared.prefix[2 * thread + 1] = before, shared.prefix[2 * thread + 2] = before + length[1];
  if (thread == 0) shared.prefix[0] = 0;
  device::sync_block();
}

/// The last block: chooses among all candidates of the token, as in a stream, and leaves the exchange as it was.
FATHOM_DEVICE void choose(const Params& p, int64_t t, Selection& shared) {
  constexpr int kEach = 4, kRound = kEach * kThreads;
  const int thread = device::thread_index(), k = p.a.topk;
  Exchange& e = p.exchange[t];
  uint32_t length[2] = {}, told[kMostSplits / kThreads] = {};
  FATHOM_UNROLL
  for (int i = 0; i < 2; ++i)
    if (2 * thread + i < p.splits) length[i] = device::load_l2(&p.counts[t * p.splits + 2 * thread + i]);
  FATHOM_UNROLL
  for (int i = 0; i < kMostSplits / kThreads; ++i) {
    const int at = thread + i * kThreads;
    if (at < p.splits) told[i] = device::load_l2(&e.reached[at]) - 1, e.reached[at] = 0;
  }
  if (thread == 0) e.written = 0, shared.least = 0;
  sum_lengths(length, shared);
  const uint32_t total = shared.prefix[p.splits];
  // All have told by now what they reach, which blocks that were early could not see.
  uint32_t least = 0;
  if (total > kRound) {
    least = reached_by_k(p, told, shared) - 1;
    device::sync_block();
  }
  int count = 0;
  for (uint32_t base = 0; base < total; base += kRound) {
    const uint32_t first = base + static_cast<uint32_t>(kEach * thread);
    int list = list_of(shared.prefix, p.splits, first);
    uint32_t key[kEach] = {}, entry[kEach] = {};
    bool keep[kEach];
    FATHOM_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const uint32_t at = first + static_cast<uint32_t>(i);
      keep[i] = at < total;
      if (!keep[i]) continue;
      while (at >= shared.prefix[list + 1]) ++list;  // lists may be empty
      const Candidate* c = p.candidates + (t * p.splits + list) * k + (at - shared.prefix[list]);
      key[i] = device::load_l2(&c->key), entry[i] = device::load_l2(&c->entry);
    }
    if (count + kRound > kBufferKeys) cut_buffer(count, k, shared), count = k;
    FATHOM_UNROLL
    for (int i = 0; i < kEach; ++i) keep[i] = keep[i] && key[i] >= shared.least && key[i] >= least;
    count = append(count, key, entry, keep, shared);
    device::sync_block();
  }
  write_chosen(p, t, count, shared);
}

/// A block's share of a stream, and the choice by the last block.
template <typename Scan>
FATHOM_DEVICE void stream_entries(const Params& p, int64_t t, Scan& scan) {
  Selection& shared = scan.choice;
  const Keys& keys = shared.keys;
  const int split = device::block_x();
  const int32_t part = (keys.visible + p.splits - 1) / p.splits, each = (part + kWarpKeys - 1) / kWarpKeys * kWarpKeys;
  const auto bound = [&](int64_t at) { return static_cast<int32_t>(at < keys.visible ? at : keys.visible); };
  const int count = scan.stream(p, t, bound(int64_t{each} * split), bound(int64_t{each} * (split + 1)));
  if (p.splits == 1) return write_chosen(p, t, count, shared);
  const uint32_t least = find_least(p, t, split, count, shared);
  if (write_candidates(p, t, split, count, least, shared)) choose(p, t, shared);
}

/// Grid (splits, tokens). Pages, sequences and what is visible are read before the previous kernel has ended. `Scan`:
/// shared memory of a way to score entries (WarpScan, WideScan). A kernel may be for few entries or for streams alone,
/// which takes fewer registers.
template <bool kFew = true, bool kStream = true, typename Scan>
FATHOM_DEVICE void select_block(const Params& p, Scan& scan) {
  const int split = device::block_x(), thread = device::thread_index();
  const int64_t t = device::block_y();
  auto& shared = scan.choice;
  const int32_t k = p.a.topk;
  if (thread == 0) shared.keys = keys_of(p.a, t);
  device::sync_block();
  const Keys& keys = shared.keys;
  const bool few = kFew && (!kStream || p.keys) && keys.visible > k && keys.visible <= Scan::kMostFew &&
                   (Scan::kMostFew <= kManyEntries || keys.visible <= p.keys_each);
  const int blocks = few ? few_blocks(p, keys.visible) : p.splits;
  typename Scan::First first = {};
  if constexpr (kFew) {
    if (few && split < blocks) first = Scan::begin(p, keys, blocks);
  }
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (split >= blocks) return;
  if (split == 0 && thread == 0) p.a.length(t) = keys.visible < k ? keys.visible : k;
  if (keys.visible <= k) {
    for (int i = split * kThreads + thread; i < k; i += p.splits * kThreads)
      p.a.index(t, i) = i < keys.visible ? slot_of(keys, i) : -1;
    return;
  }
  if constexpr (kFew) {
    if (few) return select_few(p, t, blocks, first, scan);
  }
  if constexpr (kStream) stream_entries(p, t, scan);
}

}  // namespace fathom::ops::index_select
