// Grouped wo_a by the product of the experts (ops/experts/moe_product.cuh): fp8 weights become bf16 in registers, the
// heads of a token are multiplied as they lie. A block has 32 rows or more and all slices of their columns; the block
// that completes 128 columns of z for its tokens quantises them.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/experts/moe_product.cuh"
#include "ops/output_project/output_project_params.h"

namespace fathom::ops::output_projection {

using device::Float4;

/// Heads of the tokens of a tile, 512 channels each: token lane / 4 of each eight.
template <int kTiles>
struct Heads {
  static constexpr bool kInOrder = true;
  const std::byte* base;  // first head of the group, first token
  int64_t head_bytes;
  int first_unit;  // of the slice, 64 channels each
  uint32_t offset[kTiles];
  int tokens;

  template <ExpertFormat>
  FATHOM_DEVICE const std::byte* step(int unit, int step, int lane) const {
    const int at = first_unit + unit;
    return base + at / 8 * head_bytes + at % 8 * 128 + (lane % 4 * 2 + step) * 16;
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

/// Grid: x = rows of the weight, y = tiles of tokens.
template <int kTiles>
FATHOM_DEVICE void project_block(const Params& p, std::byte* shared) {
  const moe::Place place(p.log2_slices, p.log2_sets, moe::takes_all_slices(kTiles));
  const int lane = place.lane, first_row = device::block_x() << (5 + place.log2_sets);
  const int first = place.first(p.w.blocks, p.log2_slices);
  moe::Source source;
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m)
    source.rows[m] =
        moe::find_rows<ExpertFormat::fp8>(p.w, -1, first_row + (2 * place.set + m) * moe::kGroupRows, first, lane);
  source.pitch = {8 * p.w.row_bytes, 0};
  source.count = place.count(p.w.blocks, p.log2_slices) * moe::block_units(ExpertFormat::fp8);
  source.blocks = p.w.blocks, source.log2_slices = p.log2_slices;
  moe::Product<ExpertFormat::fp8, kTiles, Heads<kTiles>> product;
  product.begin(source, lane);

  const int first_token = device::block_y() * 8 * kTiles, left = p.tokens - first_token;
  Heads<kTiles> x;
  x.tokens = left < 8 * kTiles ? left : 8 * kTiles, x.head_bytes = p.head_bytes, x.first_unit = 2 * first;
  x.base = p.o + first_row / p.rank * p.group_heads * p.head_bytes + first_token * p.token_bytes;
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    const int i = 8 * j + lane / 4;
    x.offset[j] = static_cast<uint32_t>(i < x.tokens ? i : x.tokens - 1) * static_cast<uint32_t>(p.token_bytes);
  }
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  product.run(source, x, lane);

  const moe::Partial<kTiles> partial{reinterpret_cast<float*>(shared)};
  partial.put(place, product.result());
  device::sync_block();
  const float factor = moe::restore<ExpertFormat::fp8>(p.w, 0);
  const int threads = place.threads(), log2_pairs = 4 + place.log2_sets;
  for (int i = device::thread_index(); i < x.tokens << log2_pairs; i += threads) {
    const int token = i >> log2_pairs, row = (i & ((1 << log2_pairs) - 1)) * 2;
    float v[2];
    partial.pair(place, row / 32, row / 16 % 2, token, row % 16, v);
    *reinterpret_cast<uint32_t*>(p.z + (first_token + token) * p.z_stride + first_row + row) =
        device::pack_bf16x2(v[0] * factor, v[1] * factor);
  }
  const int group = first_row / moe::kBlock;
  uint32_t* counter = p.arrivals + device::block_y() * (p.w.rows / moe::kBlock) + group;
  const auto blocks = static_cast<uint32_t>(4 >> place.log2_sets);
  if (completes_columns(counter, blocks, reinterpret_cast<uint32_t*>(shared)))
    quantize_columns(p, first_token, x.tokens, group * moe::kBlock, threads / 32);
}

}  // namespace fathom::ops::output_projection
