// The second and the third of the expert kernels: up to the quantised hidden row, and down to y.
#pragma once

#include "ops/experts/moe_prepare.cuh"
#include "ops/experts/moe_product.cuh"

namespace fathom::ops::moe {

/// A tile as a block sees it.
struct Work {
  Tile tile;
  int index;       // among all tiles, those of the shared expert first
  uint32_t slots;  // bit i: slot i belongs to the tile, where the table was not used
  bool exists;
};

FATHOM_DEVICE Work shared_work(const Params& p, int index) {
  const int first = index * p.shared_tokens, left = p.tokens - first;
  return {{-1, first, left < p.shared_tokens ? left : p.shared_tokens, 0}, index, 0, true};
}

/// Tiles of routed experts are known when the kernel that sorts has ended.
FATHOM_DEVICE Work find_work(const Params& p, int index) {
  const int routed = index - p.shared_tiles;
  if (routed < 0) return shared_work(p, index);
  if (routed >= static_cast<int>(device::load_l2(p.tile_count))) return {{}, index, 0, false};
  const Float4 v = device::load_l2(reinterpret_cast<const Float4*>(p.tile + routed));
  const Tile tile{static_cast<int32_t>(word(v.x)), static_cast<int32_t>(word(v.y)), static_cast<int32_t>(word(v.z)), 0};
  return {tile, index, 0, true};
}

/// The same from the router's choice itself, for up to 32 slots: no need to wait for the sort. Tile n is that of the
/// n-th expert that occurs; it has one token at most of each, so they fit.
FATHOM_DEVICE Work find_few(const Params& p, int index) {
  if (index < p.shared_tiles) return shared_work(p, index);
  const int lane = device::lane_index(), slots = p.tokens * p.choices;
  const int mine = lane < slots ? expert_of(p, lane) : -1;
  int before = 0;  // experts below mine
  FATHOM_UNROLL_1
  for (int i = 0; i < slots; ++i) {
    const int other = static_cast<int>(shuffle_word(static_cast<uint32_t>(mine), i));
    const bool first = device::lowest_bit(device::ballot(mine == other)) == i;
    if (first && other >= 0 && other < mine) ++before;
  }
  const uint32_t chosen = device::ballot(mine >= 0 && before == index - p.shared_tiles);
  if (chosen == 0) return {{}, index, 0, false};
  const int expert = static_cast<int>(shuffle_word(static_cast<uint32_t>(mine), device::lowest_bit(chosen)));
  return {{expert, 0, device::count_bits(chosen), 0}, index, chosen, true};
}

FATHOM_DEVICE int slot_of(const Params& p, const Work& work, int i) {
  if (work.tile.expert < 0) return p.tokens * p.choices + work.tile.first + i;
  if (work.slots != 0) {
    uint32_t left = work.slots;
    for (int k = 0; k < i; ++k) left &= left - 1;
    return device::lowest_bit(left);
  }
  return static_cast<int>(device::load_l2(reinterpret_cast<const uint32_t*>(p.sorted) + work.tile.first + i));
}
FATHOM_DEVICE int token_of(const Params& p, const Work& work, int i) {
  return work.tile.expert < 0 ? work.tile.first + i : slot_of(p, work, i) / p.choices;
}

/// Counts this block at `counter`; true in all threads of the block that is the last of `expected`. What all of them
/// wrote before is then visible through L2. `flag`: shared memory that nobody uses.
FATHOM_DEVICE bool last_to_arrive(uint32_t* counter, uint32_t expected, uint32_t* flag) {
  device::sync_block();
  if (device::thread_index() == 0) {
    device::fence();
    *flag = device::atomic_add(counter, 1u) + 1 == expected;
    device::fence();
  }
  device::sync_block();
  return *flag != 0;
}

/// h = bf(weight * (silu(min(gate, limit)) * clamp(up, +-limit))).
FATHOM_DEVICE float hidden_value(float gate, float up, float limit, float weight, bool weighted) {
  const float bound_gate = round_bf16(gate), bound_up = round_bf16(up);
  const float a = bound_gate < limit ? bound_gate : limit;
  const float b = bound_up < -limit ? -limit : bound_up > limit ? limit : bound_up;
  const float product = device::multiply(a / (1.0f + expf(-a)), b);
  return weighted ? device::multiply(weight, product) : product;
}

/// v rounded to the e4m3 grid, saturating; the value of to_e4m3(v) but for the sign of 0, without its branches.
FATHOM_DEVICE float round_e4m3(float v) {
  const float bound = v > 448.0f ? 448.0f : v < -448.0f ? -448.0f : v;  // NaN stays
  // With this added, the last bit is that of 3 bits behind the leading one, or of 2^-9.
  const float lift = fmaxf(std::bit_cast<float>((word(bound) & 0x7F800000u) + 0x0A400000u), 24576.0f);
  return device::add(device::add(bound, lift), -lift);
}

/// Eight of the 128 channels that half a warp has, quantised: v = the values of their codes times `factor_of(scale)`.
template <typename FactorOf>
FATHOM_DEVICE void quantize_eight(const Float4& eight, float (&v)[8], const FactorOf& factor_of) {
  const uint32_t words[4] = {word(eight.x), word(eight.y), word(eight.z), word(eight.w)};
  float most = 0;
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) {
    v[2 * k] = device::low_half(words[k]), v[2 * k + 1] = device::high_half(words[k]);
    most = fmaxf(most, fmaxf(fabsf(v[2 * k]), fabsf(v[2 * k + 1])));
  }
  const e8m0 scale = e4m3_scale(device::group_max(most, 16));
  const float inverse = reciprocal(scale), factor = factor_of(to_float(scale));
  FATHOM_UNROLL
  for (int k = 0; k < 8; ++k) v[k] = round_e4m3(v[k] * inverse) * factor;
}

/// The same, widened and in product order. `kGroups`: as prepare does for x.
template <bool kGroups = false>
FATHOM_DEVICE Words4 quantized_words(const Float4& eight) {
  float v[8];
  quantize_eight(eight, v, [](float scale) { return kGroups ? lifted(scale) : scale; });
  return product_order(v);
}

/// Quantises 128 channels of every token of the tile and puts them in product order. Half a warp has a token; this is
/// warp `warp` of `warps` that share the work.
template <bool kGroups = false>
FATHOM_DEVICE void quantize_group(const Params& p, const Work& work, int group, int warp, int warps) {
  const Tile& tile = work.tile;
  const int lane = device::lane_index();
  for (int first = warp * 2; first < tile.count; first += 2 * warps) {
    const int i = first + lane / 16;
    const bool mine = i < tile.count;
    const int64_t slot = slot_of(p, work, mine ? i : tile.count - 1);
    auto* row = reinterpret_cast<std::byte*>(p.hidden + slot * p.hidden_pitch) + group * 2 * kBlock;
    const Float4 eight = device::load_l2(reinterpret_cast<const Float4*>(row) + lane % 16);
    const Words4 words = quantized_words<kGroups>(eight);
    if (mine) *reinterpret_cast<Words4*>(row + (kGroups ? lane % 16 * 16 : place_of(lane % 16))) = words;
  }
}

/// Rows of w1 and w3 for one tile. `gate`, `up`: the matrices of its expert's kind.
template <ExpertFormat kFormat, int kTiles>
FATHOM_DEVICE void up_tile(const Params& p, const Weight& gate, const Weight& up, const Work& work, std::byte* shared) {
  const Place place(p.log2_up_slices, p.log2_up_sets, takes_all_slices(kTiles));
  const Tile& tile = work.tile;
  const int lane = place.lane, first_row = device::block_x() << (4 + place.log2_sets);
  if (first_row >= gate.rows) return device::wait_for_previous_kernel();
  const int first = place.first(gate.blocks, p.log2_up_slices);
  Source source;
  source.rows[0] = find_rows<kFormat>(gate, tile.expert, first_row + place.set * kGroupRows, first, lane);
  source.rows[1] = find_rows<kFormat>(up, tile.expert, first_row + place.set * kGroupRows, first, lane);
  source.pitch = {8 * gate.row_bytes, 8 * gate.scale_row};
  source.count = place.count(gate.blocks, p.log2_up_slices) * block_units(kFormat);
  source.blocks = gate.blocks, source.log2_slices = p.log2_up_slices;
  Product<kFormat, kTiles, uses_ring(kTiles)> product;
  product.begin(source, shared, lane);
  device::wait_for_previous_kernel();  // x in product order
  device::let_next_kernel_start();

  const ProductOrder from{reinterpret_cast<const std::byte*>(p.x_wide)};
  multiply_tile(product, source, from, tile.count, place, shared, [&](int i) {
    const auto row = static_cast<uint32_t>(token_of(p, work, i)) * 2u * static_cast<uint32_t>(p.d);
    return row + static_cast<uint32_t>(first * kBlockBytes);
  });

  const Partial<kTiles> partial{reinterpret_cast<float*>(shared)};
  partial.put(place, product.result());
  device::sync_block();
  const float gate_factor = restore<kFormat>(gate, tile.expert), up_factor = restore<kFormat>(up, tile.expert);
  const int threads = place.threads(), log2_pairs = 3 + place.log2_sets;
  for (int i = device::thread_index(); i < tile.count << log2_pairs; i += threads) {
    const int token = i >> log2_pairs, row = (i & ((1 << log2_pairs) - 1)) * 2;
    float a[2], b[2];
    partial.pair(place, row / kGroupRows, 0, token, row % kGroupRows, a);
    partial.pair(place, row / kGroupRows, 1, token, row % kGroupRows, b);
    const int64_t slot = slot_of(p, work, token);
    const bool weighted = tile.expert >= 0;
    const float weight = weighted ? p.weight[slot / p.choices * p.weight_stride + slot % p.choices] : 1.0f;
    *reinterpret_cast<uint32_t*>(p.hidden + slot * p.hidden_pitch + first_row + row) =
        device::pack_bf16x2(hidden_value(a[0] * gate_factor, b[0] * up_factor, p.limit, weight, weighted),
                            hidden_value(a[1] * gate_factor, b[1] * up_factor, p.limit, weight, weighted));
  }
  const int group = first_row / kBlock;
  uint32_t* counter = p.arrivals + work.index * (p.hidden_pitch / kBlock) + group;
  const auto blocks = static_cast<uint32_t>(kBlock / kGroupRows >> place.log2_sets);
  if (last_to_arrive(counter, blocks, reinterpret_cast<uint32_t*>(shared)))
    quantize_group(p, work, group, device::warp_index(), threads / 32);
}

/// Grid: x = rows of I, y = tiles.
template <ExpertFormat kFormat, int kTiles>
FATHOM_DEVICE void up_block(const Params& p, std::byte* shared) {
  const int index = device::block_y();
  if (index < p.shared_tiles) {
    up_tile<ExpertFormat::fp8, kTiles>(p, p.s1, p.s3, shared_work(p, index), shared);
    return;
  }
  if (!p.few) device::wait_for_previous_kernel();
  const Work work = p.few ? find_few(p, index) : find_work(p, index);
  if (work.exists)
    up_tile<kFormat, kTiles>(p, p.w1, p.w3, work, shared);
  else
    device::wait_for_previous_kernel();
}

/// Eight columns of a part, added in order.
FATHOM_DEVICE void add_part(float (&sum)[8], const Float4& v) {
  const uint32_t words[4] = {word(v.x), word(v.y), word(v.z), word(v.w)};
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) sum[2 * k] += device::low_half(words[k]), sum[2 * k + 1] += device::high_half(words[k]);
}
/// Stores eight columns of y, or of the sums.
FATHOM_DEVICE void store_sum(const Params& p, int token, int row, const float (&sum)[8]) {
  if (p.sum) {
    auto* to = reinterpret_cast<Float4*>(p.sum + token * p.sum_stride + row);
    to[0] = {sum[0], sum[1], sum[2], sum[3]}, to[1] = {sum[4], sum[5], sum[6], sum[7]};
    return;
  }
  Words4 out;
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) out.word[k] = device::pack_bf16x2(sum[2 * k], sum[2 * k + 1]);
  *reinterpret_cast<Words4*>(p.y + token * p.y_stride + row) = out;
}

/// y of eight columns from `row` on: the parts of a token in the order of its experts, then the shared part.
FATHOM_DEVICE void sum_piece(const Params& p, int token, int row) {
  float sum[8] = {};
  const auto add = [&](int64_t slot) {
    add_part(sum, device::load_l2(reinterpret_cast<const Float4*>(p.part + slot * p.d + row)));
  };
  FATHOM_UNROLL_8
  for (int c = 0; c < p.choices; ++c)
    if (expert_of(p, token * p.choices + c) >= 0) add(int64_t{token} * p.choices + c);
  if (p.shared_tiles > 0) add(int64_t{p.tokens} * p.choices + token);
  store_sum(p, token, row, sum);
}

/// y of `rows` columns from `first_row` on. This is thread `thread` of `threads` that share the work.
FATHOM_DEVICE void sum_parts(const Params& p, int first_row, int rows, int thread, int threads) {
  const int pieces = rows / 8;
  for (int i = thread; i < p.tokens * pieces; i += threads) sum_piece(p, i / pieces, first_row + i % pieces * 8);
}

/// Rows of w2 for one tile.
template <ExpertFormat kFormat, int kTiles>
FATHOM_DEVICE void down_tile(const Params& p, const Weight& w, const Work& work, std::byte* shared) {
  const Place place(p.log2_down_slices, p.log2_down_sets, takes_all_slices(kTiles));
  const Tile& tile = work.tile;
  const int lane = place.lane, first_row = device::block_x() << (5 + place.log2_sets);
  const int first = place.first(w.blocks, p.log2_down_slices);
  Source source;
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m)
    source.rows[m] = find_rows<kFormat>(w, tile.expert, first_row + (2 * place.set + m) * kGroupRows, first, lane);
  source.pitch = {8 * w.row_bytes, 8 * w.scale_row};
  source.count = place.count(w.blocks, p.log2_down_slices) * block_units(kFormat);
  source.blocks = w.blocks, source.log2_slices = p.log2_down_slices;
  Product<kFormat, kTiles, uses_ring(kTiles)> product;
  product.begin(source, shared, lane);
  device::wait_for_previous_kernel();  // the hidden rows
  device::let_next_kernel_start();
  const ProductOrder from{reinterpret_cast<const std::byte*>(p.hidden) + first * kBlockBytes};
  multiply_tile(product, source, from, tile.count, place, shared, [&](int i) {
    return static_cast<uint32_t>(slot_of(p, work, i)) * 2u * static_cast<uint32_t>(p.hidden_pitch);
  });

  const Partial<kTiles> partial{reinterpret_cast<float*>(shared)};
  partial.put(place, product.result());
  device::sync_block();
  const float factor = restore<kFormat>(w, tile.expert);
  const int threads = place.threads(), log2_pairs = 4 + place.log2_sets;
  for (int i = device::thread_index(); i < tile.count << log2_pairs; i += threads) {
    const int token = i >> log2_pairs, row = (i & ((1 << log2_pairs) - 1)) * 2;
    float v[2];
    partial.pair(place, row / 32, row / kGroupRows % 2, token, row % kGroupRows, v);
    *reinterpret_cast<uint32_t*>(p.part + int64_t{slot_of(p, work, token)} * p.d + first_row + row) =
        device::pack_bf16x2(v[0] * factor, v[1] * factor);
  }
  uint32_t* counter = p.arrivals + p.row_arrivals + device::block_x();
  const uint32_t blocks = static_cast<uint32_t>(p.shared_tiles) + device::load_l2(p.tile_count);
  if (last_to_arrive(counter, blocks, reinterpret_cast<uint32_t*>(shared)))
    sum_parts(p, first_row, 32 << place.log2_sets, device::thread_index(), threads);
}

/// Grid: x = rows of d, y = tiles. What the first kernel wrote is there: the second one waited for it before it let
/// this one start.
template <ExpertFormat kFormat, int kTiles>
FATHOM_DEVICE void down_block(const Params& p, std::byte* shared) {
  const Work work = find_work(p, device::block_y());
  if (!work.exists) {
    device::wait_for_previous_kernel();
  } else if (device::block_y() >= p.shared_tiles) {
    down_tile<kFormat, kTiles>(p, p.w2, work, shared);
  } else {
    down_tile<ExpertFormat::fp8, kTiles>(p, p.s2, work, shared);
  }
}

}  // namespace fathom::ops::moe
