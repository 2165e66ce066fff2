// Grouped wo_a by the product of the experts (ops/experts/moe_product.cuh): fp8 weights become bf16 in registers, the
// heads of a token are multiplied as they lie. A block has 32 rows or more and all slices of their columns; the block
// that completes 128 columns of z for its tokens quantises them.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/experts/moe_product.cuh"
#include "ops/output_project/output_project_params.h"

namespace fathom::ops::output_projection {

using device::Float4;

/// Heads of a group as they lie, 512 channels each.
struct Heads {
  static constexpr bool kInOrder = true;
  const std::byte* base;  // first head of the group, first token
  int64_t head_bytes;
  int first;  // block of the slice
  FATHOM_DEVICE const std::byte* block(int b) const {
    const int at = first + b;
    return base + at / 4 * head_bytes + at % 4 * moe::kBlockBytes;
  }
};

/// Codes and scale of 128 columns of every token of the tile. Half a warp has a token.
FATHOM_DEVICE void quantize_columns(const Params& p, int first_token, int tokens, int column, int warps) {
  const int lane = device::lane_index();
  for (int first = device::warp_index() * 2; first < tokens; first += 2 * warps) {
    const int i = first + lane / 16;
    const int64_t token = first_token + (i < tokens ? i : tokens - 1);
    const Float4 eight =
        device::load_l2(reinterpret_cast<const Float4*>(p.z + token * p.z_stride + column) + lane % 16);
    const float words[4] = {eight.x, eight.y, eight.z, eight.w};
    float v[8];
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) {
      v[2 * k] = device::low_half(moe::word(words[k])), v[2 * k + 1] = device::high_half(moe::word(words[k]));
    }
    const e8m0 scale = e4m3_scale(device::group_max(device::largest(v), 16));
    if (i >= tokens) continue;
    const float inverse = reciprocal(scale);
    device::Words2 codes;
    codes.word[0] = device::codes_of(v, inverse), codes.word[1] = device::codes_of(v + 4, inverse);
    *reinterpret_cast<device::Words2*>(p.codes + token * p.codes_stride + column + lane % 16 * 8) = codes;
    if (lane % 16 == 0) p.scale[token * p.scale_stride + column / 128] = scale;
  }
}

/// Counts this block among those of its 128 columns; true in the last one, which also resets the counter.
FATHOM_DEVICE bool completes_columns(uint32_t* counter, uint32_t expected, uint32_t* flag) {
  device::sync_block();
  if (device::thread_index() == 0) {
    device::fence();
    *flag = device::atomic_add(counter, 1u) + 1 == expected;
    if (*flag) *counter = 0;
    device::fence();
  }
  device::sync_block();
  return *flag != 0;
}

/// Leaves the sums of this block's slice in memory. In the last block of its rows and tokens, adds the slices in order,
/// takes the sums to shared memory and returns true.
FATHOM_DEVICE bool gather_slices(const Params& p, const moe::Place& place, float* sums, uint32_t* counter) {
  const int slices = 1 << p.log2_slices, threads = place.threads();
  float* all = p.partial + ((int64_t{device::block_y()} * device::grid_x() + device::block_x()) * slices) * kBlockSums;
  auto* mine = reinterpret_cast<Float4*>(all + device::block_z() * kBlockSums);
  auto* local = reinterpret_cast<Float4*>(sums);
  for (int i = device::thread_index(); i < kBlockSums / 4; i += threads) mine[i] = local[i];
  // The flag lies behind the sums.
  if (!completes_columns(counter, static_cast<uint32_t>(slices), reinterpret_cast<uint32_t*>(sums + kBlockSums)))
    return false;
  for (int i = device::thread_index(); i < kBlockSums / 4; i += threads) {
    Float4 v[kMostSlices] = {}, sum{0, 0, 0, 0};
    FATHOM_UNROLL
    for (int s = 0; s < kMostSlices; ++s)
      if (s < slices) v[s] = device::load_l2(reinterpret_cast<const Float4*>(all + s * kBlockSums) + i);
    FATHOM_UNROLL
    for (int s = 0; s < kMostSlices; ++s)
      if (s < slices) sum.x += v[s].x, sum.y += v[s].y, sum.z += v[s].z, sum.w += v[s].w;
    local[i] = sum;
  }
  device::sync_block();
  return true;
}

/// Rounds and stores what lies in shared memory, and quantises it when its columns are complete.
template <int kTiles>
FATHOM_DEVICE void finish(const Params& p, const moe::Place& place, int first_row, int first_token, int tokens,
                          float* sums) {
  const moe::Partial<kTiles> partial{sums};
  const float factor = moe::restore<ExpertFormat::fp8>(p.w, 0);
  const int threads = place.threads(), log2_pairs = 4 + place.log2_sets, rows = 32 << place.log2_sets;
  for (int i = device::thread_index(); i < tokens << log2_pairs; i += threads) {
    const int token = i >> log2_pairs, row = (i & ((1 << log2_pairs) - 1)) * 2;
    float v[2];
    partial.pair(place, row / 32, row / 16 % 2, token, row % 16, v);
    *reinterpret_cast<uint32_t*>(p.z + (first_token + token) * p.z_stride + first_row + row) =
        device::pack_bf16x2(v[0] * factor, v[1] * factor);
  }
  const int group = first_row / moe::kBlock;
  if (rows < moe::kBlock) {
    uint32_t* counter = p.arrivals + device::block_y() * (p.w.rows / moe::kBlock) + group;
    if (!completes_columns(counter, static_cast<uint32_t>(moe::kBlock / rows), reinterpret_cast<uint32_t*>(sums)))
      return;
  } else {
    device::sync_block();
  }
  for (int at = first_row / moe::kBlock * moe::kBlock; at < first_row + rows; at += moe::kBlock)
    quantize_columns(p, first_token, tokens, at, threads / 32);
}

/// Grid: x = rows of the weight, y = tiles of tokens, z = slices where blocks have one each.
template <int kTiles>
FATHOM_DEVICE void project_block(const Params& p, std::byte* shared) {
  moe::Place place(p.log2_slices, p.log2_sets, moe::takes_all_slices(kTiles));
  const int lane = place.lane, first_row = device::block_x() << (5 + place.log2_sets);
  if (p.split) place.slice = device::block_z();
  const int first = place.first(p.w.blocks, p.log2_slices);
  const int end = p.split ? moe::first_block(p.w.blocks, p.log2_slices, place.slice + 1)
                          : first + place.count(p.w.blocks, p.log2_slices);
  place.slice = p.split ? 0 : place.slice;  // in shared memory
  moe::Source source;
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m)
    source.rows[m] =
        moe::find_rows<ExpertFormat::fp8>(p.w, -1, first_row + (2 * place.set + m) * moe::kGroupRows, first, lane);
  source.pitch = {8 * p.w.row_bytes, 0};
  source.count = (end - first) * moe::block_units(ExpertFormat::fp8);
  source.blocks = end - first, source.log2_slices = p.split ? 0 : p.log2_slices;
  moe::Product<ExpertFormat::fp8, kTiles> product;
  product.begin(source, shared, lane);

  const int first_token = device::block_y() * 8 * kTiles, left = p.tokens - first_token;
  const int tokens = left < 8 * kTiles ? left : 8 * kTiles;
  const std::byte* heads = p.o + first_row / p.rank * p.group_heads * p.head_bytes + first_token * p.token_bytes;
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  moe::multiply_tile(product, source, Heads{heads, p.head_bytes, first}, tokens, place, shared,
                     [&](int i) { return static_cast<uint32_t>(i) * static_cast<uint32_t>(p.token_bytes); });

  auto* sums = reinterpret_cast<float*>(shared);
  moe::Partial<kTiles>{sums}.put(place, product.result());
  device::sync_block();
  if constexpr (kTiles == 8) {
    uint32_t* counter = p.arrivals + device::block_y() * (p.w.rows / moe::kBlock) + first_row / moe::kBlock;
    if (p.split && !gather_slices(p, place, sums, counter)) return;
  }
  finish<kTiles>(p, place, first_row, first_token, tokens, sums);
}

}  // namespace fathom::ops::output_projection
