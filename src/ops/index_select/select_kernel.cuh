// Exact top-k over a stream of scores: one block, or several that share a token's entries.
//
// A block scores its entries 256 at a time and keeps those that can still be chosen in a buffer, in entry order. A full
// buffer is cut to its best k (ties: the earlier entry), whose smallest key later entries must exceed; so memory does
// not grow with the context. Blocks that share a token add their candidates to common bins; what lies below the bin
// that holds the k-th candidate cannot be chosen and is dropped, also while some blocks have not counted yet. The last
// block to finish chooses exactly among the few that are left. For few entries the bins cost more than they save.
#pragma once

#include "ops/index_select/score_kernel.cuh"

namespace fathom::ops::index_select {

FATHOM_DEVICE void clear(uint32_t* words, int count) {
  for (int i = device::thread_index(); i < count; i += kThreads) words[i] = 0;
}

/// found[0] = the bin that holds the k-th largest key, found[1] = keys above that bin. Thread i has the counts of bins
/// 8 i .. 8 i + 7. With fewer than k keys: bin 0.
FATHOM_DEVICE void find_bin(const uint32_t (&count)[8], uint32_t k, Shared& shared) {
  const int lane = device::lane_index(), warp = device::warp_index();
  uint32_t own = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) own += count[i];
  int suffix = static_cast<int>(own);
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int other = device::shuffle_int(suffix, (lane + step) & 31);
    if (lane + step < 32) suffix += other;
  }
  if (lane == 0) shared.warp_count[0][warp] = static_cast<uint32_t>(suffix);
  if (device::thread_index() == 0) shared.found[0] = shared.found[1] = 0;
  device::sync_block();
  uint32_t through = static_cast<uint32_t>(suffix);
  for (int w = warp + 1; w < kWarps; ++w) through += shared.warp_count[0][w];
  uint32_t above = through - own;
  if (above < k && through >= k) {
    FATHOM_UNROLL
    for (int i = 7; i >= 0; --i) {
      if (above < k && above + count[i] >= k)
        shared.found[0] = static_cast<uint32_t>(8 * device::thread_index() + i), shared.found[1] = above;
      above += count[i];
    }
  }
  device::sync_block();
}

/// The k-th largest key, and how many keys equal to it are chosen, once shared.found and shared.fine (counts of the
/// keys in the bin found) are there. The same in all threads.
struct Limit {
  uint32_t key, equal;
};
FATHOM_DEVICE Limit find_limit(uint32_t k, const Shared& shared) {
  const int lane = device::lane_index();
  const auto own = static_cast<int>(shared.fine[lane]);
  int suffix = own;
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int other = device::shuffle_int(suffix, (lane + step) & 31);
    if (lane + step < 32) suffix += other;
  }
  const int above = static_cast<int>(shared.found[1]) + suffix - own, wanted = static_cast<int>(k);
  const int at = device::lowest_bit(device::ballot(above < wanted && above + own >= wanted));
  return {shared.found[0] << kFineBits | static_cast<uint32_t>(at),
          static_cast<uint32_t>(wanted - device::shuffle_int(above, at))};
}

/// Ordered choice: threads hold neighbouring candidates, tile after tile. Counts of what came before are kept here.
struct Choice {
  uint32_t greater = 0, equal = 0;
};
/// Where this thread's candidate goes among the chosen ones; -1: it is not chosen. `may` false: no candidate.
FATHOM_DEVICE int place(Choice& so_far, uint32_t key, bool may, Limit limit, Shared& shared) {
  const int warp = device::warp_index();
  const uint32_t before = (1u << device::lane_index()) - 1;
  const bool is_greater = may && key > limit.key, is_equal = may && key == limit.key;
  const uint32_t greater = device::ballot(is_greater), equal = device::ballot(is_equal);
  device::sync_block();  // the counts of the last tile have been read
  if (device::lane_index() == 0) {
    shared.warp_count[0][warp] = static_cast<uint32_t>(device::count_bits(greater));
    shared.warp_count[1][warp] = static_cast<uint32_t>(device::count_bits(equal));
  }
  device::sync_block();
  uint32_t greater_before = so_far.greater + static_cast<uint32_t>(device::count_bits(greater & before));
  uint32_t equal_before = so_far.equal + static_cast<uint32_t>(device::count_bits(equal & before));
  for (int w = 0; w < kWarps; ++w) {
    const uint32_t g = shared.warp_count[0][w], e = shared.warp_count[1][w];
    if (w < warp) greater_before += g, equal_before += e;
    so_far.greater += g, so_far.equal += e;
  }
  if (!is_greater && !(is_equal && equal_before < limit.equal)) return -1;
  return static_cast<int>(greater_before + (equal_before < limit.equal ? equal_before : limit.equal));
}

/// Counts the buffer's keys into shared.bins.
FATHOM_DEVICE void count_bins(int count, Shared& shared) {
  clear(shared.bins, kBins);
  device::sync_block();
  for (int i = device::thread_index(); i < count; i += kThreads)
    device::atomic_add(&shared.bins[shared.buffer_key[i] >> kFineBits], 1u);
  device::sync_block();
}
FATHOM_DEVICE void own_bins(const uint32_t* bins, uint32_t (&count)[8]) {
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) count[i] = bins[8 * device::thread_index() + i];
}

/// Cuts a buffer of more than k candidates to the best k, in order; later ones must exceed the smallest key kept.
FATHOM_DEVICE void cut_buffer(int count, int k, Shared& shared) {
  count_bins(count, shared);
  uint32_t own[8];
  own_bins(shared.bins, own);
  find_bin(own, static_cast<uint32_t>(k), shared);
  clear(shared.fine, kFine);
  device::sync_block();
  for (int i = device::thread_index(); i < count; i += kThreads)
    if (shared.buffer_key[i] >> kFineBits == shared.found[0])
      device::atomic_add(&shared.fine[shared.buffer_key[i] & (kFine - 1)], 1u);
  device::sync_block();
  const Limit limit = find_limit(static_cast<uint32_t>(k), shared);
  Choice so_far;
  for (int base = 0; base < count; base += kThreads) {
    const int i = base + device::thread_index();
    const uint32_t key = i < count ? shared.buffer_key[i] : 0, entry = i < count ? shared.buffer_entry[i] : 0;
    const int to = place(so_far, key, i < count, limit, shared);  // waits until all have read
    if (to >= 0) shared.buffer_key[to] = static_cast<uint16_t>(key), shared.buffer_entry[to] = entry;
  }
  if (device::thread_index() == 0) shared.least = limit.key + 1;
  device::sync_block();
}

/// Appends the chunk's keys that may still be chosen to the buffer, in order; returns the new count.
FATHOM_DEVICE int append(int count, int32_t first, int32_t end, Shared& shared) {
  const int i = device::thread_index();
  const uint32_t key = shared.chunk[i];
  Choice none;
  const int to = place(none, key + 1, first + i < end && key >= shared.least, {0, 0}, shared);
  if (to >= 0)
    shared.buffer_key[count + to] = static_cast<uint16_t>(key),
                              shared.buffer_entry[count + to] = static_cast<uint32_t>(first + i);
  device::sync_block();
  return count + static_cast<int>(none.greater);
}

/// Scores entries [begin, end); returns how many candidates, at most k, are in the buffer.
template <bool kAligned>
FATHOM_DEVICE int scan(const Params& p, int64_t t, const Keys& keys, int32_t begin, int32_t end, Shared& shared) {
  const int lane = device::lane_index(), warp = device::warp_index(), k = p.a.topk;
  const int head_tiles = (static_cast<int>(p.a.q.size[1]) + 15) / 16 * 2;
  int count = 0;
  Tile<2> tile;
  int32_t mine = begin + warp * kWarpKeys;
  if (mine < end) load_tile<kAligned>(keys, place_row(keys, mine), tile);
  if (device::thread_index() == 0) shared.least = 0;
  if (begin < end) load_queries(p.a, t, shared.queries);  // while the first rows are on their way
  device::sync_block();
  for (int32_t first = begin; first < end; first += kChunkKeys, mine += kChunkKeys) {
    if (mine < end) {  // the same for a whole warp
      Rows<2> rows;
      spread_tile<2>(tile, rows);
      if (mine + kChunkKeys < end)
        load_tile<kAligned>(keys, place_row(keys, mine + kChunkKeys), tile);  // in flight during the products
      const uint32_t key = score_rows<2>(rows, head_tiles, shared.queries);
      shared.chunk[warp * kWarpKeys + lane % 4 * 8 + lane / 4] = static_cast<uint16_t>(key);
    }
    device::sync_block();
    if (count + kChunkKeys > kBufferKeys) cut_buffer(count, k, shared), count = k;
    count = append(count, first, end, shared);
  }
  if (count > k) cut_buffer(count, k, shared), count = k;
  return count;
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

inline constexpr int kAtOnce = 8;  // candidates a thread loads before it uses them

/// Candidates base + 256 j + thread of all lists, j < kAtOnce; key 0 and entry ~0 past the end.
FATHOM_DEVICE void load_candidates(const Params& p, int64_t t, uint32_t base, uint32_t total, const Shared& shared,
                                   Candidate (&c)[kAtOnce]) {
  FATHOM_UNROLL
  for (int j = 0; j < kAtOnce; ++j) {
    const uint32_t i = base + static_cast<uint32_t>(j * kThreads + device::thread_index());
    c[j] = {0, ~0u};
    if (i >= total) continue;
    const int list = list_of(shared.prefix, p.splits, i);
    const Candidate* at = p.candidates + (t * p.splits + list) * p.a.topk + (i - shared.prefix[list]);
    c[j] = {device::load_l2(&at->key), device::load_l2(&at->entry)};
  }
}

/// Prefix sums of the lists' lengths, which thread i < splits put into prefix[i + 1], by one warp, 32 at a time.
FATHOM_DEVICE void sum_lengths(int splits, Shared& shared) {
  const int lane = device::lane_index();
  uint32_t before = 0;
  for (int base = 0; base < splits; base += 32) {
    const int i = base + lane;
    int sum = i < splits ? static_cast<int>(shared.prefix[i + 1]) : 0;
    FATHOM_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int other = device::shuffle_int(sum, (lane - step) & 31);
      if (lane >= step) sum += other;
    }
    if (i < splits) shared.prefix[i + 1] = before + static_cast<uint32_t>(sum);
    before += static_cast<uint32_t>(device::shuffle_int(sum, 31));
  }
  if (lane == 0) shared.prefix[0] = 0;
}

/// The last block: chooses among all candidates of the token and leaves the exchange as it was. `few`: nobody counted
/// into the common bins.
FATHOM_DEVICE void choose(const Params& p, int64_t t, const Keys& keys, bool few, Shared& shared) {
  const auto k = static_cast<uint32_t>(p.a.topk);
  Exchange& e = p.exchange[t];
  for (int i = device::thread_index(); i < p.splits; i += kThreads)
    shared.prefix[i + 1] = device::load_l2(&p.counts[t * p.splits + i]);
  clear(shared.fine, kFine);
  if (few) clear(shared.bins, kBins);
  device::sync_block();
  if (device::warp_index() == 0) sum_lengths(p.splits, shared);
  device::sync_block();
  const uint32_t total = shared.prefix[p.splits];
  Candidate c[kAtOnce];
  uint32_t own[8];
  if (few) {
    for (uint32_t base = 0; base < total; base += kAtOnce * kThreads) {
      load_candidates(p, t, base, total, shared, c);
      FATHOM_UNROLL
      for (int j = 0; j < kAtOnce; ++j)
        if (c[j].entry != ~0u) device::atomic_add(&shared.bins[c[j].key >> kFineBits], 1u);
    }
    device::sync_block();
    own_bins(shared.bins, own);
  } else {
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) {
      uint32_t& bin = e.bins[8 * device::thread_index() + i];
      own[i] = device::load_l2(&bin), bin = 0;
    }
  }
  if (device::thread_index() == 0) e.counted = e.written = 0;
  find_bin(own, k, shared);
  const bool at_once = few && total <= kAtOnce * kThreads;  // c holds all
  for (uint32_t base = 0; base < total; base += kAtOnce * kThreads) {
    if (!at_once) load_candidates(p, t, base, total, shared, c);
    FATHOM_UNROLL
    for (int j = 0; j < kAtOnce; ++j)
      if (c[j].entry != ~0u && c[j].key >> kFineBits == shared.found[0])
        device::atomic_add(&shared.fine[c[j].key & (kFine - 1)], 1u);
  }
  device::sync_block();
  const Limit limit = find_limit(k, shared);
  Choice so_far;
  for (uint32_t base = 0; base < total; base += kAtOnce * kThreads) {
    if (total > kAtOnce * kThreads) load_candidates(p, t, base, total, shared, c);
    FATHOM_UNROLL
    for (int j = 0; j < kAtOnce; ++j) {
      if (base + static_cast<uint32_t>(j * kThreads) >= total) break;
      const int to = place(so_far, c[j].key, c[j].entry != ~0u, limit, shared);
      if (to >= 0) p.a.index(t, to) = slot_of(keys, static_cast<int32_t>(c[j].entry));
    }
  }
}

/// Counts this block's candidates into the token's bins and waits a while for the others. Returns the bin below which
/// nothing can be chosen.
FATHOM_DEVICE uint32_t exchange_counts(const Params& p, int64_t t, int count, Shared& shared) {
  count_bins(count, shared);
  Exchange& e = p.exchange[t];
  for (int i = device::thread_index(); i < kBins; i += kThreads)
    if (shared.bins[i] > 0) device::atomic_add(&e.bins[i], shared.bins[i]);
  device::fence();
  device::sync_block();
  if (device::thread_index() == 0) {
    device::atomic_add(&e.counted, 1u);
    const int64_t until = device::cycles() + p.patience;
    while (device::load_acquire(&e.counted) < static_cast<uint32_t>(p.splits) && device::cycles() < until)
      device::rest();
  }
  device::sync_block();
  uint32_t own[8];
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) own[i] = device::load_l2(&e.bins[8 * device::thread_index() + i]);
  find_bin(own, static_cast<uint32_t>(p.a.topk), shared);
  return shared.found[0];
}

/// Writes this block's candidates that may be chosen; says whether this block is the last to do so.
FATHOM_DEVICE bool write_candidates(const Params& p, int64_t t, int split, int count, uint32_t bin, Shared& shared) {
  Candidate* to = p.candidates + (t * p.splits + split) * p.a.topk;
  Choice so_far;
  for (int base = 0; base < count; base += kThreads) {
    const int i = base + device::thread_index();
    const uint32_t key = i < count ? shared.buffer_key[i] : 0;
    const int at = place(so_far, key + 1, i < count && key >> kFineBits >= bin, {0, 0}, shared);
    if (at >= 0) to[at] = {key, shared.buffer_entry[i]};
  }
  if (device::thread_index() == 0) p.counts[t * p.splits + split] = so_far.greater;
  device::fence();
  device::sync_block();
  if (device::thread_index() == 0) {
    shared.flag = device::atomic_add(&p.exchange[t].written, 1u) + 1 == static_cast<uint32_t>(p.splits);
    device::fence();
  }
  device::sync_block();
  return shared.flag != 0;
}

/// Grid (splits, tokens).
FATHOM_DEVICE void select_block(const Params& p, Shared& shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int split = device::block_x(), thread = device::thread_index();
  const int64_t t = device::block_y();
  if (thread == 0) shared.keys = keys_of(p.a, t);
  device::sync_block();
  const Keys& keys = shared.keys;  // registers are needed for other things
  const int32_t k = p.a.topk;
  if (split == 0 && thread == 0) p.a.length(t) = keys.visible < k ? keys.visible : k;
  if (keys.visible <= k) {
    for (int i = split * kThreads + thread; i < k; i += p.splits * kThreads)
      p.a.index(t, i) = i < keys.visible ? slot_of(keys, i) : -1;
    return;
  }
  const int32_t part = (keys.visible + p.splits - 1) / p.splits, each = (part + kWarpKeys - 1) / kWarpKeys * kWarpKeys;
  const auto bound = [&](int64_t at) { return static_cast<int32_t>(at < keys.visible ? at : keys.visible); };
  const int32_t begin = bound(int64_t{each} * split), end = bound(int64_t{each} * (split + 1));
  const int count =
      is_aligned(keys) ? scan<true>(p, t, keys, begin, end, shared) : scan<false>(p, t, keys, begin, end, shared);
  if (p.splits == 1) {
    for (int i = thread; i < k; i += kThreads)
      p.a.index(t, i) = slot_of(keys, static_cast<int32_t>(shared.buffer_entry[i]));
    return;
  }
  const bool few = keys.visible <= kFewEntries;
  const uint32_t bin = few ? 0 : exchange_counts(p, t, count, shared);
  if (write_candidates(p, t, split, count, bin, shared)) choose(p, t, keys, few, shared);
}

}  // namespace fathom::ops::index_select
