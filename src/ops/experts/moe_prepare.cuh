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
  if (p.teams) return;  // place_row() does the rest
  // The order of tokens of an expert may differ from run to run; no result depends on it.
  for (int i = thread; i < slots; i += kPrepareThreads) {
    const int e = expert_of(p, i);
    if (e >= 0) p.sorted[s.first[e] + device::atomic_add(&s.filled[e], 1u)] = i;
  }
}

/// Where the slots of one token belong, found in every block: nobody waits for the sort.
struct Places {
  uint32_t *count, *rank, *first, *first_tile;  // [experts]; [choices] each: slots before, of the expert and in all
  int32_t* mine;                                // [choices] experts

  FATHOM_DEVICE Places(const Params& p, std::byte* shared) {
    count = reinterpret_cast<uint32_t*>(shared);
    rank = count + p.experts, first = rank + p.choices, first_tile = first + p.choices;
    mine = reinterpret_cast<int32_t*>(first_tile + p.choices);
  }
};

FATHOM_DEVICE void find_places(const Params& p, const Places& s, int token) {
  const int thread = device::thread_index(), lane = device::lane_index(), own = token * p.choices;
  for (int e = thread; e < p.experts; e += kPrepareThreads) s.count[e] = 0;
  for (int c = thread; c < p.choices; c += kPrepareThreads)
    s.mine[c] = expert_of(p, own + c), s.rank[c] = s.first[c] = s.first_tile[c] = 0;
  device::sync_block();
  for (int i = thread; i < p.tokens * p.choices; i += kPrepareThreads) {
    const int e = expert_of(p, i);
    if (e < 0) continue;
    device::atomic_add(&s.count[e], 1u);
    if (i >= own + p.choices) continue;
    for (int c = 0; c < p.choices; ++c)
      if (e == s.mine[c] && i < own + c) device::atomic_add(&s.rank[c], 1u);
  }
  device::sync_block();
  for (int base = 0; base < p.experts; base += kPrepareThreads) {
    const int e = base + thread;
    const uint32_t count = e < p.experts ? s.count[e] : 0;
    const uint32_t tiles = (count + static_cast<uint32_t>(p.tile_tokens) - 1) / static_cast<uint32_t>(p.tile_tokens);
    for (int c = 0; c < p.choices; ++c) {
      const bool before = e < s.mine[c];
      const uint32_t slots_before = device::sum_of_warp(before ? count : 0);
      const uint32_t tiles_before = device::sum_of_warp(before ? tiles : 0);
      if (lane > 0 || slots_before == 0) continue;
      device::atomic_add(&s.first[c], slots_before), device::atomic_add(&s.first_tile[c], tiles_before);
    }
  }
  device::sync_block();
}

/// x of one token as it is, to the tiles of its experts, in the order of slots within an expert, and to that of the
/// shared expert.
FATHOM_DEVICE void place_row(const Params& p, int token, std::byte* shared) {
  const Places s(p, shared);
  const int thread = device::thread_index();
  find_places(p, s, token);
  const auto* row = reinterpret_cast<const std::byte*>(p.x + token * p.x_stride);
  const e8m0* scale = p.x_scale + token * p.x_scale_stride;
  const int stage_bytes = team_x_bytes(p.tile_tokens), codes_bytes = p.tile_tokens * 2 * kBlock;
  const int64_t shared_bytes = int64_t{p.d / kBlock} * kSharedXBytes;
  const int64_t tile_bytes = int64_t{p.d / (2 * kBlock)} * stage_bytes;
  // Calls `put(tile, place)` for each choice.
  const auto for_tiles = [&](const auto& put) {
    for (int c = 0; c < p.choices; ++c) {
      if (s.mine[c] < 0) continue;
      const auto rank = static_cast<int>(s.rank[c]);
      put(p.x_tiles + p.shared_tiles * shared_bytes +
              (static_cast<int>(s.first_tile[c]) + rank / p.tile_tokens) * tile_bytes,
          rank % p.tile_tokens);
    }
  };
  std::byte* to_shared = p.x_tiles + token / p.shared_tokens * shared_bytes;
  const int shared_token = token % p.shared_tokens;
  for (int c = thread; c < p.choices; c += kPrepareThreads)
    if (s.mine[c] >= 0) p.sorted[s.first[c] + s.rank[c]] = token * p.choices + c;
  for (int i = thread; i < p.d / 16; i += kPrepareThreads) {
    // Of 32 columns those of every other four.
    const auto* from = reinterpret_cast<const uint32_t*>(row + i / 2 * 32) + i % 2;
    const Words4 words = {{from[0], from[2], from[4], from[6]}};
    for_tiles([&](std::byte* to, int place) {
      *reinterpret_cast<Words4*>(to + i / 16 * stage_bytes + team_place(i / 2 % 8, i % 2, place)) = words;
    });
    if (p.shared_tiles == 0) continue;
    const auto* next = reinterpret_cast<const uint32_t*>(row + i * 16);
    *reinterpret_cast<Words4*>(to_shared + i / 8 * kSharedXBytes +
                               shared_place(i % 8, shared_token)) = {{next[0], next[1], next[2], next[3]}};
  }
  for (int i = thread; i < p.d / kBlock; i += kPrepareThreads) {
    const float factor = to_float(scale[i]);
    for_tiles([&](std::byte* to, int place) {
      reinterpret_cast<float*>(to + i / 2 * stage_bytes + codes_bytes)[i % 2 * p.tile_tokens + place] = factor;
    });
    if (p.shared_tiles > 0) reinterpret_cast<float*>(to_shared + i * kSharedXBytes + kTeamEight)[shared_token] = factor;
  }
}

/// Grid: 1 + tokens blocks.
FATHOM_DEVICE void prepare_block(const Params& p, std::byte* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // not earlier: what starts may rely on all that came before this kernel
  if (device::block_x() == 0) return sort_tokens(p, shared);
  const int token = device::block_x() - 1;
  if (p.teams)
    place_row(p, token, shared);
  else
    widen_row(p, token);
  for (int i = token * kPrepareThreads + device::thread_index(); i < p.counters; i += p.tokens * kPrepareThreads)
    p.arrivals[i] = 0;
}

}  // namespace fathom::ops::moe
