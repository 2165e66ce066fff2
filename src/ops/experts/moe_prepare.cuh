// The first of the expert kernels: block 0 sorts the tokens by expert, the others widen a row of x each and zero the
// counters of the kernels that follow.
#pragma once

#include "ops/experts/moe_activations.cuh"
#include "ops/experts/moe_groups.cuh"

namespace fathom::ops::moe {

struct alignas(16) Words4 {
  uint32_t word[4];
};

/// Eight values in product order.
FATHOM_DEVICE Words4 product_order(const float (&v)[8]) {
  Words4 w;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) w.word[i] = device::pack_bf16x2(v[i], v[i + 4]);
  return w;
}

/// Where pair `pair` of a product order's eight columns `piece` of a block lies in the order of warpgroup products
/// (moe_many.cuh), whose steps of 16 columns follow each other, in 4-byte words. `fp8`: for fp8 weights.
FATHOM_DEVICE int many_place(int piece, int pair, bool fp8) {
  const int step = fp8 ? piece / 8 * 2 + piece % 2 : piece % 4, t = fp8 ? piece % 8 / 2 : piece / 4;
  return (step * 4 + pair) * 4 + t;
}
FATHOM_DEVICE void store_many(std::byte* block, int piece, bool fp8, const Words4& words) {
  FATHOM_UNROLL
  for (int pair = 0; pair < 4; ++pair)
    reinterpret_cast<uint32_t*>(block)[many_place(piece, pair, fp8)] = words.word[pair];
}

/// x of one token as bf16, which is exact; in the order of columns and lifted where sums go in groups.
FATHOM_DEVICE void widen_row(const Params& p, int token) {
  const auto* codes = reinterpret_cast<const uint64_t*>(p.x + token * p.x_stride);
  const e8m0* scale = p.x_scale + token * p.x_scale_stride;
  auto* to = reinterpret_cast<std::byte*>(p.x_wide + int64_t{token} * p.d);
  for (int i = device::thread_index(); i < p.d / 8; i += kPrepareThreads) {
    const uint64_t eight = codes[i];
    const float factor = p.groups ? lifted(to_float(scale[i / 16])) : to_float(scale[i / 16]);
    float v[8];
    FATHOM_UNROLL
    for (int k = 0; k < 8; ++k) v[k] = to_float(e4m3{static_cast<uint8_t>(eight >> 8 * k)}) * factor;
    const Words4 words = product_order(v);
    std::byte* block = to + i / 16 * kBlockBytes;
    if (p.many) {
      store_many(block, i % 16, false, words);
      if (p.shared_tiles > 0) store_many(block + int64_t{p.tokens} * p.d * 2, i % 16, true, words);
      continue;
    }
    *reinterpret_cast<Words4*>(block + (p.groups ? i % 16 * 16 : place_of(i % 16))) = words;
  }
}

/// The sum of v over the lanes before this one; `total` becomes the sum over all.
FATHOM_DEVICE uint32_t sum_before(uint32_t v, uint32_t* total) {
  const int lane = device::lane_index();
  uint32_t sum = v;
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = shuffle_word(sum, lane >= step ? lane - step : lane);
    if (lane >= step) sum += other;
  }
  *total = shuffle_word(sum, 31);
  return sum - v;
}

/// Counts, then turns them into first slots and first tiles.
struct Sorting {
  uint32_t *count, *filled, *first, *first_tile;  // [experts] each

  FATHOM_DEVICE Sorting(const Params& p, std::byte* shared) {
    count = reinterpret_cast<uint32_t*>(shared);
    filled = count + p.experts, first = filled + p.experts, first_tile = first + p.experts;
  }
};

/// The expert of a slot, counted from the first that the weights hold; -1 for one that they do not, which takes part in
/// nothing.
FATHOM_DEVICE int expert_of(const Params& p, int slot) {
  const int token = slot / p.choices;
  const int e = p.expert[token * p.expert_stride + slot % p.choices] - p.first_expert;
  return e >= 0 && e < p.experts ? e : -1;
}

FATHOM_DEVICE void sort_tokens(const Params& p, std::byte* shared) {
  const Sorting s(p, shared);
  const int thread = device::thread_index(), slots = p.tokens * p.choices;
  for (int e = thread; e < p.experts; e += kPrepareThreads) s.count[e] = s.filled[e] = 0;
  device::sync_block();
  for (int i = thread; i < slots; i += kPrepareThreads) {
    const int e = expert_of(p, i);
    if (e >= 0) device::atomic_add(&s.count[e], 1u);
  }
  device::sync_block();
  if (thread < 32) {
    uint32_t slot = 0, tile = 0;
    for (int base = 0; base < p.experts; base += 32) {
      const int e = base + thread;
      const uint32_t count = e < p.experts ? s.count[e] : 0;
      const uint32_t tiles = (count + static_cast<uint32_t>(p.tile_tokens) - 1) / static_cast<uint32_t>(p.tile_tokens);
      uint32_t all_slots, all_tiles;
      const uint32_t slots_before = sum_before(count, &all_slots), tiles_before = sum_before(tiles, &all_tiles);
      if (e < p.experts) s.first[e] = slot + slots_before, s.first_tile[e] = tile + tiles_before;
      slot += all_slots, tile += all_tiles;
    }
    if (thread == 0) *p.tile_count = tile;
  }
  device::sync_block();
  for (int e = thread; e < p.experts; e += kPrepareThreads) {
    const int count = static_cast<int>(s.count[e]), first = static_cast<int>(s.first[e]);
    for (int at = 0, tile = static_cast<int>(s.first_tile[e]); at < count; at += p.tile_tokens, ++tile)
      p.tile[tile] = {e, first + at, count - at < p.tile_tokens ? count - at : p.tile_tokens, 0};
  }
  // The order of tokens of an expert may differ from run to run; no result depends on it.
  for (int i = thread; i < slots; i += kPrepareThreads) {
    const int e = expert_of(p, i);
    if (e >= 0) p.sorted[s.first[e] + device::atomic_add(&s.filled[e], 1u)] = i;
  }
}

/// Grid: 1 + tokens blocks.
FATHOM_DEVICE void prepare_block(const Params& p, std::byte* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // not earlier: what starts may rely on all that came before this kernel
  if (device::block_x() == 0) return sort_tokens(p, shared);
  const int token = device::block_x() - 1;
  widen_row(p, token);
  for (int i = token * kPrepareThreads + device::thread_index(); i < p.counters; i += p.tokens * kPrepareThreads)
    p.arrivals[i] = 0;
}

}  // namespace fathom::ops::moe
