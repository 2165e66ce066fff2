// The product kernel for few tokens: weights are the 16-row side of the tensor core tile, tokens the 8-column side.
//
// A warp owns one group of 16 rows and one slice of K. Its weights go from memory straight to registers, 16 bytes a
// thread and row, `depth` units ahead, and nobody else reads them: no shared memory and no barrier stand in the
// stream of weights. That the 16 bytes of a thread are neighbours in K while the tile wants them apart does not
// matter: x is read with the same permutation. x lies in shared memory, shared by all groups of the block, as a whole
// where it fits and in chunks elsewhere. Slices meet in shared memory at the end, across a cluster where there is one.
#pragma once

#include <bit>
#include <cmath>

#include "ops/device/e4m3_decode.h"
#include "ops/device/gpu.cuh"
#include "ops/device/mma_fp8.cuh"
#include "ops/linear/gemm_params.h"

namespace fathom::ops::gemm {

using device::Float4;

/// One unit of one group: 64 bytes of rows g (low) and g + 8 (high), twice.
struct Unit {
  Float4 low[2], high[2];
  uint32_t scale;
};

/// Where a thread stands.
struct Place {
  int warp, lane, slice, group_warp;  // `slice` of the block's
  int first_slice, first_token, tokens;
  int slice_thread, slice_threads;  // among the threads of its slice

  FATHOM_DEVICE Place(const Params& p, int token_tile) {
    warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32;
    slice = warp >> p.log2_group_warps, group_warp = warp & (p.group_warps() - 1);
    first_slice = device::block_x() << p.log2_slice_warps, first_token = device::block_z() * token_tile;
    tokens = p.tokens - first_token < token_tile ? p.tokens - first_token : token_tile;
    slice_threads = 32 << p.log2_group_warps, slice_thread = group_warp * 32 + lane;
  }
  FATHOM_DEVICE int group(const Params& p) const { return (device::block_y() << p.log2_group_warps) + group_warp; }
  /// First unit of this thread's slice, and the one behind its last.
  FATHOM_DEVICE int begin(const Params& p) const { return first_unit(p.units, p.log2_slices, first_slice + slice); }
  FATHOM_DEVICE int end(const Params& p) const { return first_unit(p.units, p.log2_slices, first_slice + slice + 1); }
};

/// Where the weights of this thread lie.
struct Source {
  const std::byte *low, *high;
  const uint8_t* scale;
  int count;       // units of the slice; 0 for a warp without rows
  int bytes_left;  // from the thread's first byte of the slice to the end of the row
};

FATHOM_DEVICE const Part& part_of(const Params& p, int group, int* first_group) {
  int i = 0;
  while (i + 1 < p.parts && group >= p.part[i + 1].first_group) ++i;
  *first_group = p.part[i].first_group;
  return p.part[i];
}

FATHOM_DEVICE Source find_source(const Params& p, int group, int slice, int lane) {
  if (group >= p.groups) return {};
  int first_group;
  const Part& part = part_of(p, group, &first_group);
  const int row = (group - first_group) * kGroupRows, last = part.rows - 1, low = row + lane / 4, high = low + 8;
  const int begin = first_unit(p.units, p.log2_slices, slice);
  const int offset = begin * kUnitBytes + lane % 4 * 16;
  Source s;
  s.low = part.w + (low < last ? low : last) * part.w_stride + offset;
  s.high = part.w + (high < last ? high : last) * part.w_stride + offset;
  s.scale = part.scale + row / 128 * part.scale_stride + begin;
  s.count = first_unit(p.units, p.log2_slices, slice + 1) - begin;
  s.bytes_left = p.row_bytes - offset;
  return s;
}

template <Math kMath>
FATHOM_DEVICE void load_unit(Unit& u, const Source& s, int unit) {
  FATHOM_UNROLL
  for (int c = 0; c < 2; ++c) {
    const int at = unit * kUnitBytes + 64 * c;
    if (has_scales(kMath) || at < s.bytes_left) {
      u.low[c] = device::load_once(reinterpret_cast<const Float4*>(s.low + at));
      u.high[c] = device::load_once(reinterpret_cast<const Float4*>(s.high + at));
    } else {
      u.low[c] = u.high[c] = Float4{0, 0, 0, 0};
    }
  }
  if constexpr (has_scales(kMath)) u.scale = s.scale[unit];
}

FATHOM_DEVICE uint32_t word(float v) {
  return std::bit_cast<uint32_t>(v);
}
FATHOM_DEVICE float from_word(uint32_t v) {
  return std::bit_cast<float>(v);
}

/// 16 codes as fp16 fields, each value times 2^-8: even and odd bytes of each word, in the order the products want.
FATHOM_DEVICE void widen(const Float4& codes, Float4 (&out)[2]) {
  out[0].x = from_word(device::spread_even_codes_f16(word(codes.x)));
  out[0].y = from_word(device::spread_odd_codes_f16(word(codes.x)));
  out[0].z = from_word(device::spread_even_codes_f16(word(codes.y)));
  out[0].w = from_word(device::spread_odd_codes_f16(word(codes.y)));
  out[1].x = from_word(device::spread_even_codes_f16(word(codes.z)));
  out[1].y = from_word(device::spread_odd_codes_f16(word(codes.z)));
  out[1].z = from_word(device::spread_even_codes_f16(word(codes.w)));
  out[1].w = from_word(device::spread_odd_codes_f16(word(codes.w)));
}

template <Math kMath>
FATHOM_DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], float b0, float b1) {
  if constexpr (kMath == Math::e4m3)
    device::mma_e4m3(d, a, word(b0), word(b1));
  else if constexpr (kMath == Math::bf16)
    device::mma_bf16(d, a, word(b0), word(b1));
  else
    device::mma_f16(d, a, word(b0), word(b1));
}

/// d += 16 bytes of each row (as they are multiplied: widened codes count double) times those of x.
template <Math kMath>
FATHOM_DEVICE void multiply_piece(float (&d)[4], const Float4& low, const Float4& high, const Float4& x) {
  const uint32_t first[4] = {word(low.x), word(high.x), word(low.y), word(high.y)};
  multiply<kMath>(d, first, x.x, x.y);
  const uint32_t second[4] = {word(low.z), word(high.z), word(low.w), word(high.w)};
  multiply<kMath>(d, second, x.z, x.w);
}

/// Shared memory while products run: x [slice][unit][token][128 bytes, widened], then its scales [slice][unit][token].
/// Pieces of 16 bytes of odd tokens are exchanged with their neighbours so that the 8 threads that read at once, 4
/// pieces of 2 tokens, hit different banks.
template <Math kMath, int kTiles>
struct Staging {
  static constexpr int kTokens = 8 * kTiles, kRow = kUnitBytes * widening(kMath), kUnit = kTokens * kRow;
  std::byte* x;
  float* scales;

  FATHOM_DEVICE Staging(const Params& p, std::byte* shared)
      : x(shared), scales(reinterpret_cast<float*>(shared + (p.chunk_units << p.log2_slice_warps) * kUnit)) {}

  /// Offset of the 16 bytes (of the widened row) number `piece` of a token of this parity.
  static FATHOM_DEVICE int place(int piece, int odd) { return (piece ^ odd * (kMath == Math::e4m3_f16 ? 1 : 4)) * 16; }
};

/// total += unit . x, scaled. `x` is the row of token lane / 4 for this unit, `scales` those of tokens 2 (lane % 4) ...
template <Math kMath, int kTiles>
FATHOM_DEVICE void multiply_unit(float (&total)[kTiles][4], const Unit& u, const std::byte* x, const float* scales,
                                 int lane) {
  using Place = Staging<kMath, kTiles>;
  constexpr int kPieces = 2 * widening(kMath);
  Float4 low[kPieces], high[kPieces];
  FATHOM_UNROLL
  for (int c = 0; c < 2; ++c) {
    if constexpr (kMath == Math::e4m3_f16) {
      Float4 wide[2];
      widen(u.low[c], wide);
      low[2 * c] = wide[0], low[2 * c + 1] = wide[1];
      widen(u.high[c], wide);
      high[2 * c] = wide[0], high[2 * c + 1] = wide[1];
    } else {
      low[c] = u.low[c], high[c] = u.high[c];
    }
  }
  const float weight_scale = has_scales(kMath) ? to_float(e8m0{static_cast<uint8_t>(u.scale)}) : 1.0f;
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    float sum[4] = {};
    FATHOM_UNROLL
    for (int c = 0; c < kPieces; ++c) {
      const int piece = (c / widening(kMath) * 4 + lane % 4) * widening(kMath) + c % widening(kMath);
      const std::byte* at = x + 8 * j * Place::kRow + Place::place(piece, lane / 4 & 1);
      multiply_piece<kMath>(sum, low[c], high[c], *reinterpret_cast<const Float4*>(at));
    }
    if constexpr (has_scales(kMath)) {
      const float even = scales[8 * j] * weight_scale;
      const float odd = scales[8 * j + 1] * weight_scale;
      constexpr float kRestore = kMath == Math::e4m3_f16 ? 65536.0f : 1.0f;  // both factors carry 2^-8
      total[j][0] = fmaf(sum[0] * kRestore, even, total[j][0]);
      total[j][1] = fmaf(sum[1] * kRestore, odd, total[j][1]);
      total[j][2] = fmaf(sum[2] * kRestore, even, total[j][2]);
      total[j][3] = fmaf(sum[3] * kRestore, odd, total[j][3]);
    } else {
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) total[j][i] += sum[i];
    }
  }
}

/// Scales of x: [slice][unit][token]. The threads of a slice bring what belongs to it.
template <int kTiles>
FATHOM_DEVICE void stage_scales(const Params& p, const Place& at, float* to, int chunk) {
  const int begin = at.begin(p) + chunk, count = p.chunk_units << p.token_bits;
  float* mine = to + at.slice * p.chunk_units * 8 * kTiles;
  FATHOM_UNROLL_1
  for (int i = at.slice_thread; i < count; i += at.slice_threads) {
    const int token = i & ((1 << p.token_bits) - 1), unit = i >> p.token_bits;
    if (token < at.tokens && begin + unit < p.units)
      mine[unit * 8 * kTiles + token] =
          to_float(e8m0{p.x_scale[(at.first_token + token) * p.x_scale_stride + begin + unit]});
  }
}

/// Brings units chunk ... chunk + chunk_units of every slice of the block; ends with a barrier.
template <Math kMath, int kTiles>
FATHOM_DEVICE void stage_x(const Params& p, const Place& at, const Staging<kMath, kTiles>& to, int chunk) {
  const int begin = at.begin(p) + chunk, end = at.end(p), count = p.chunk_units * 8 << p.token_bits;
  std::byte* mine = to.x + at.slice * p.chunk_units * to.kUnit;
  FATHOM_UNROLL_1
  for (int i = at.slice_thread; i < count; i += at.slice_threads) {
    const int piece = i % 8, token = i / 8 & ((1 << p.token_bits) - 1), unit = i / 8 >> p.token_bits;
    if (token >= at.tokens || begin + unit >= end) continue;
    const int byte = (begin + unit) * kUnitBytes + 16 * piece, first = piece * widening(kMath);
    const bool present = byte < p.row_bytes;
    const std::byte* from = p.x + (at.first_token + token) * p.x_stride + (present ? byte : 0);
    std::byte* row = mine + unit * to.kUnit + token * to.kRow;
    if constexpr (kMath == Math::e4m3_f16) {
      Float4 wide[2];
      widen(*reinterpret_cast<const Float4*>(from), wide);
      *reinterpret_cast<Float4*>(row + to.place(first, token & 1)) = wide[0];
      *reinterpret_cast<Float4*>(row + to.place(first + 1, token & 1)) = wide[1];
    } else {
      device::copy_async_16(row + to.place(first, token & 1), from, present);
    }
  }
  device::copy_async_commit();
  if constexpr (has_scales(kMath)) stage_scales<kTiles>(p, at, to.scales, chunk);
  device::copy_async_wait<0>();
  device::sync_block();
}

FATHOM_DEVICE void store_row_quad(const Params& p, int group, int row, int token, const float (&v)[4]) {
  if (group >= p.groups) return;
  int first_group;
  const Part& part = part_of(p, group, &first_group);
  const int n = (group - first_group) * kGroupRows + row;
  const int64_t at = token * part.y_stride + n;
  if (p.fp32_out) {
    float* y = static_cast<float*>(part.y) + at;
    if (part.aligned && n + 3 < part.rows) {
      *reinterpret_cast<Float4*>(y) = Float4{v[0], v[1], v[2], v[3]};
      return;
    }
    for (int i = 0; i < 4; ++i)
      if (n + i < part.rows) y[i] = v[i];
    return;
  }
  bf16* y = static_cast<bf16*>(part.y) + at;
  uint32_t pair[2];
  if (p.factor == 1) {
    pair[0] = device::pack_bf16x2(v[0], v[1]), pair[1] = device::pack_bf16x2(v[2], v[3]);
  } else {
    pair[0] = device::pack_bf16x2(round_bf16(v[0]) * p.factor, round_bf16(v[1]) * p.factor);
    pair[1] = device::pack_bf16x2(round_bf16(v[2]) * p.factor, round_bf16(v[3]) * p.factor);
  }
  if (part.aligned && n + 3 < part.rows) {
    *reinterpret_cast<uint64_t*>(y) = pair[0] | static_cast<uint64_t>(pair[1]) << 32;
    return;
  }
  for (int i = 0; i < 4; ++i)
    if (n + i < part.rows) y[i] = bf16{static_cast<uint16_t>(pair[i / 2] >> 16 * (i & 1))};
}

/// Sum of all slices, in order, of four outputs at `offset` of a slice's partial sums. Eight loads at a time.
FATHOM_DEVICE void add_slices(const Params& p, float* partial, int offset, int slice_stride, float (&sum)[4]) {
  const int slices = 1 << p.log2_slices;
  FATHOM_UNROLL_1
  for (int base = 0; base < slices; base += 8) {
    Float4 v[8];
    FATHOM_UNROLL
    for (int u = 0; u < 8; ++u) {
      const int slice = base + u;
      if (slice >= slices) continue;
      float* from = p.cluster > 1 ? device::in_cluster_block(partial, slice >> p.log2_slice_warps) : partial;
      v[u] = *reinterpret_cast<const Float4*>(from + (slice & (p.slice_warps() - 1)) * slice_stride + offset);
    }
    FATHOM_UNROLL
    for (int u = 0; u < 8; ++u) {
      if (base + u >= slices) continue;
      sum[0] += v[u].x, sum[1] += v[u].y, sum[2] += v[u].z, sum[3] += v[u].w;
    }
  }
}

/// Adds the slices and stores. Partial sums lie [slice][token][row] in the shared memory of the block that owns the
/// slice; each block of a cluster finishes its share of the outputs.
template <int kTiles>
FATHOM_DEVICE void finish(const Params& p, const Place& at, const float (&total)[kTiles][4], float* partial) {
  const int stride = (kGroupRows << p.log2_group_warps) + 4, slice_stride = 8 * kTiles * stride;
  device::sync_block();  // x has been read
  float* mine = partial + at.slice * slice_stride + at.group_warp * kGroupRows + at.lane / 4;
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    float* to = mine + (8 * j + at.lane % 4 * 2) * stride;
    to[0] = total[j][0], to[stride] = total[j][1], to[8] = total[j][2], to[stride + 8] = total[j][3];
  }
  if (p.cluster > 1)
    device::sync_cluster();
  else
    device::sync_block();
  const int log2_row_quads = 2 + p.log2_group_warps, quads = at.tokens << log2_row_quads;
  const int log2_cluster = p.log2_slices - p.log2_slice_warps, rank = device::block_x();
  const int end = quads * (rank + 1) >> log2_cluster, threads = at.slice_threads << p.log2_slice_warps;
  FATHOM_UNROLL_1
  for (int i = (quads * rank >> log2_cluster) + device::thread_index(); i < end; i += threads) {
    const int token = i >> log2_row_quads, row = (i & ((1 << log2_row_quads) - 1)) * 4;
    float sum[4] = {};
    add_slices(p, partial, token * stride + row, slice_stride, sum);
    store_row_quad(p, (device::block_y() << p.log2_group_warps) + row / kGroupRows, row % kGroupRows,
                   at.first_token + token, sum);
  }
  if (p.cluster > 1) device::leave_cluster();
}

/// Grid: x = cluster, y = row tiles of group_warps groups, z = token tiles.
template <Math kMath, int kTiles>
FATHOM_DEVICE void gemm_block(const Params& p, std::byte* shared) {
  constexpr int kDepth = depth(kMath, kTiles);
  const Place place(p, 8 * kTiles);
  const int lane = place.lane;
  const Source source = find_source(p, place.group(p), place.first_slice + place.slice, lane);

  Unit unit[kDepth];
  FATHOM_UNROLL
  for (int i = 0; i < kDepth; ++i)
    if (i < source.count) load_unit<kMath>(unit[i], source, i);
  device::wait_for_previous_kernel();

  const Staging<kMath, kTiles> staging(p, shared);
  const int held = place.slice * p.chunk_units;  // units of the slices before
  const std::byte* x = staging.x + held * staging.kUnit + lane / 4 * staging.kRow;
  const float* scales = staging.scales + held * staging.kTokens + lane % 4 * 2;
  float total[kTiles][4] = {};
  const int longest = longest_slice(p.units, p.log2_slices);
  for (int chunk = 0; chunk < longest; chunk += p.chunk_units) {
    if (chunk > 0) device::sync_block();
    stage_x(p, place, staging, chunk);
    int end = source.count - chunk;
    if (end > p.chunk_units) end = p.chunk_units;
    FATHOM_UNROLL_1
    for (int base = 0; base < end; base += kDepth) {
      FATHOM_UNROLL
      for (int i = 0; i < kDepth; ++i) {
        const int local = base + i, next = chunk + local + kDepth;
        if (local < end) {
          multiply_unit<kMath, kTiles>(total, unit[i], x + local * staging.kUnit, scales + local * staging.kTokens,
                                       lane);
          if (next < source.count) load_unit<kMath>(unit[i], source, next);
        }
      }
    }
  }
  finish<kTiles>(p, place, total, reinterpret_cast<float*>(shared));
}

}  // namespace fathom::ops::gemm
