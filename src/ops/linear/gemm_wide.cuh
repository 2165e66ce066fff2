// The product kernel by warpgroups (sm_90a), for one to many tokens.
//
// A warp owns a group of 16 rows and one slice of K; the four warps of a warpgroup have the same slice and multiply
// together. The weights of a warp come by cp.async, whole 128-byte lines, into a ring of its own. fp8 codes go from
// there to registers, where they become fp16, and into the products from there; bf16 is multiplied out of the ring.
// The fp8 tensor cores of sm_90 are not used: they keep about 13 bits below the largest term of a sum, which moves
// results by up to two steps of bf16 (measured). x and the scales lie in shared memory for all.
#pragma once

#include "ops/linear/gemm_kernel.cuh"
#include "ops/linear/stream_kernel.cuh"

namespace fathom::ops::gemm {

/// Shared memory while products run: x [slice][unit][token], 128 bytes of 16-bit values for each half of 64 codes or
/// for 64 bf16, in 128-byte swizzle; rings [warpgroup][stage][64][128]; scales of x [slice][unit][token] and of the
/// weights [slice][unit][group].
template <Math kMath, int kTiles>
struct WideStaging {
  static constexpr int kTokens = 8 * kTiles, kHalf = kTokens * 128, kUnit = kHalf * widening(kMath);
  static constexpr int kStage = 4 * kGroupRows * kUnitBytes;
  std::byte *x, *ring;
  float *scales, *weight_scales;

  FATHOM_DEVICE WideStaging(const Params& p, std::byte* shared, int warpgroup) : x(shared) {
    const int held = p.chunk_units << p.log2_slice_warps;
    const int warpgroups = 1 << (p.log2_slice_warps + p.log2_group_warps - 2);
    std::byte* rings = x + held * kUnit;
    ring = rings + warpgroup * p.stages * kStage;
    scales = reinterpret_cast<float*>(rings + warpgroups * p.stages * kStage);
    weight_scales = scales + held * kTokens;
  }
};

/// What a thread copies of each unit: 16 bytes of rows lane / 8 + 0, 4, 8, 12 of the warp's group.
struct WideSource {
  const std::byte* w;
  const uint8_t* scale;  // of the slice's first unit
  int64_t four_rows;     // bytes
  int rows;              // of these four that exist
  int bytes_left;        // from the first byte to the end of the row
};

FATHOM_DEVICE WideSource find_wide_source(const Params& p, const Place& at) {
  WideSource s = {p.x, nullptr, 0, 0, 0};
  const int group = at.group(p), begin = at.begin(p), offset = begin * kUnitBytes + at.lane % 8 * 16;
  if (group >= p.groups) return s;
  int first_group;
  const Part& part = part_of(p, group, &first_group);
  const int row = (group - first_group) * kGroupRows, left = part.rows - row - at.lane / 8;
  s.rows = left <= 0 ? 0 : (left + 3) / 4;
  s.w = part.w + (row + at.lane / 8) * part.w_stride + offset;
  s.scale = part.scale + row / 128 * part.scale_stride + begin;
  s.four_rows = 4 * part.w_stride;
  s.bytes_left = p.row_bytes - offset;
  return s;
}

/// `stage`: the warp's 16 rows.
FATHOM_DEVICE void copy_wide_unit(const WideSource& s, const std::byte* readable, std::byte* stage, int unit,
                                  int lane) {
  const int at = unit * kUnitBytes;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const bool present = i < s.rows && at < s.bytes_left;
    device::copy_async_16(stage + device::box_place(4 * i + lane / 8, lane % 8),
                          present ? s.w + i * s.four_rows + at : readable, present);
  }
}

/// Stores 16 bytes of x; codes in the order of the streaming kernel, whose bits these are to be.
template <Math kMath>
FATHOM_DEVICE void store_wide_piece(std::byte* unit, int half_bytes, int token, int piece, const Float4& v) {
  std::byte* row = unit + token * 128;
  if constexpr (kMath == Math::e4m3_wide)
    stream::store_codes(row + piece / 4 * half_bytes, token, piece % 4, v);
  else
    *reinterpret_cast<Float4*>(row + (piece ^ token % 8) * 16) = v;
}

/// Scales of the weights of a chunk, those of each warp by itself.
template <Math kMath, int kTiles>
FATHOM_DEVICE void stage_weight_scales(const Params& p, const Place& at, const WideSource& source,
                                       const WideStaging<kMath, kTiles>& to, int chunk) {
  const int begin = at.begin(p) + chunk, end = at.end(p), held = at.slice * p.chunk_units;
  float* mine = to.weight_scales + (held << p.log2_group_warps) + at.group_warp;
  for (int unit = at.lane; unit < p.chunk_units; unit += 32)
    if (source.scale && begin + unit < end)
      mine[unit << p.log2_group_warps] = to_float(e8m0{source.scale[chunk + unit]});
}

/// Waits until at most `pending` of the newest groups of copies are under way; more than 3 count as 3.
FATHOM_DEVICE void wait_for_copies(int pending) {
  if (pending == 1)
    device::copy_async_wait<1>();
  else if (pending == 0)
    device::copy_async_wait<0>();
  else if (pending == 2)
    device::copy_async_wait<2>();
  else
    device::copy_async_wait<3>();
}

/// Brings x and the scales of x of units chunk ... chunk + chunk_units of every slice of the block; ends with a
/// barrier.
template <Math kMath, int kTiles>
FATHOM_DEVICE void stage_wide(const Params& p, const Place& at, const WideSource& source,
                              const WideStaging<kMath, kTiles>& to, int chunk) {
  constexpr int kBatch = kMath == Math::e4m3_wide && kTiles == 8 ? 4 : kTiles;  // what registers allow
  const int begin = at.begin(p) + chunk, end = at.end(p), count = p.chunk_units * 8 << p.token_bits;
  const int held = at.slice * p.chunk_units;
  FATHOM_UNROLL_1
  for (int base = at.slice_thread; base < count; base += kBatch * at.slice_threads) {
    Float4 v[kBatch];
    FATHOM_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int i = base + b * at.slice_threads, token = i / 8 & ((1 << p.token_bits) - 1);
      const int byte = (begin + (i / 8 >> p.token_bits)) * kUnitBytes + i % 8 * 16;
      v[b] = Float4{0, 0, 0, 0};
      if (i < count && token < at.tokens && byte < p.row_bytes)
        v[b] = device::load_l2(reinterpret_cast<const Float4*>(p.x + (at.first_token + token) * p.x_stride + byte));
    }
    FATHOM_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int i = base + b * at.slice_threads, token = i / 8 & ((1 << p.token_bits) - 1);
      const int unit = i / 8 >> p.token_bits;
      if (i < count && token < at.tokens && begin + unit < end)
        store_wide_piece<kMath>(to.x + (held + unit) * to.kUnit, to.kHalf, token, i % 8, v[b]);
    }
  }
  if constexpr (has_scales(kMath)) {
    stage_scales<kTiles>(p, at, to.scales, chunk);
    if (chunk > 0) stage_weight_scales(p, at, source, to, chunk);
  }
  device::publish_to_products();
  device::sync_block();
}

/// sum = unit . x. `weights`: the warp's rows (fp8) or those of the warpgroup (bf16).
template <Math kMath, int kTiles>
FATHOM_DEVICE void multiply_wide_unit(float (&sum)[4 * kTiles], const std::byte* weights, const std::byte* x,
                                      int lane) {
  if constexpr (kMath == Math::e4m3_wide) {
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[4][2], a[4][4];
      stream::read_codes(codes, weights, half, lane);
      FATHOM_UNROLL
      for (int step = 0; step < 4; ++step) stream::decode<stream::Input::e4m3>(codes[step], 0, a[step]);
      device::multiply_begin();
      FATHOM_UNROLL
      for (int step = 0; step < 4; ++step) {
        const auto b = device::describe_matrix(x + half * 8 * kTiles * 128 + 32 * step, 16, 1024);
        device::multiply_rows_f16<kTiles>(sum, a[step], b, half + step > 0);
      }
      device::multiply_end();
    }
  } else {
    device::multiply_begin();
    FATHOM_UNROLL
    for (int step = 0; step < 4; ++step)
      device::multiply_64_rows_bf16<kTiles>(sum, device::describe_matrix(weights + 32 * step, 16, 1024),
                                            device::describe_matrix(x + 32 * step, 16, 1024), step > 0);
    device::multiply_end();
  }
}

template <Math kMath, int kTiles>
FATHOM_DEVICE void add_scaled(float (&total)[kTiles][4], const float (&sum)[4 * kTiles], const float* scales,
                              const float* weight_scale) {
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    if constexpr (has_scales(kMath)) {
      const float even = scales[8 * j] * *weight_scale, odd = scales[8 * j + 1] * *weight_scale;
      total[j][0] = fmaf(sum[4 * j], even, total[j][0]);
      total[j][1] = fmaf(sum[4 * j + 1], odd, total[j][1]);
      total[j][2] = fmaf(sum[4 * j + 2], even, total[j][2]);
      total[j][3] = fmaf(sum[4 * j + 3], odd, total[j][3]);
    } else {
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) total[j][i] += sum[4 * j + i];
    }
  }
}

/// Grid as for gemm_block.
template <Math kMath, int kTiles>
FATHOM_DEVICE void wide_block(const Params& p, std::byte* shared) {
  using Shared = WideStaging<kMath, kTiles>;
  const Place place(p, 8 * kTiles);
  const int lane = place.lane, warpgroup = place.warp / 4, own_rows = place.warp % 4 * kGroupRows * kUnitBytes;
  const Shared staging(p, shared, warpgroup);
  const WideSource source = find_wide_source(p, place);
  const int count = place.end(p) - place.begin(p);
  FATHOM_UNROLL_1
  for (int i = 0; i < p.ahead; ++i) {
    if (i < count) copy_wide_unit(source, p.x, staging.ring + i * staging.kStage + own_rows, i, lane);
    device::copy_async_commit();
  }
  if constexpr (has_scales(kMath)) stage_weight_scales(p, place, source, staging, 0);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // not earlier: whoever starts may rely on all that came before this kernel

  const int held = place.slice * p.chunk_units;  // units of the slices before
  const float* scales = staging.scales + held * staging.kTokens + lane % 4 * 2;
  const float* weight_scales = staging.weight_scales + (held << p.log2_group_warps) + place.group_warp;
  float total[kTiles][4] = {};
  const int longest = longest_slice(p.units, p.log2_slices);
  int stage = 0;
  for (int chunk = 0; chunk < longest; chunk += p.chunk_units) {
    if (chunk > 0) device::sync_block();
    stage_wide(p, place, source, staging, chunk);
    int end = count - chunk;
    if (end > p.chunk_units) end = p.chunk_units;
    FATHOM_UNROLL_1
    for (int local = 0; local < end; ++local) {
      wait_for_copies(p.ahead - 1);
      if constexpr (kMath == Math::e4m3_wide) {
        device::sync_warp();  // the unit is there for the warp, and the warp has done with the one before
      } else {
        device::publish_to_products();
        device::sync_warpgroup(warpgroup);
      }
      const int next = chunk + local + p.ahead, free = stage == 0 ? p.stages - 1 : stage - 1;
      if (next < count) copy_wide_unit(source, p.x, staging.ring + free * staging.kStage + own_rows, next, lane);
      device::copy_async_commit();
      float sum[4 * kTiles] = {};
      const std::byte* weights = staging.ring + stage * staging.kStage + (kMath == Math::e4m3_wide ? own_rows : 0);
      multiply_wide_unit<kMath, kTiles>(sum, weights, staging.x + (held + local) * staging.kUnit, lane);
      add_scaled<kMath, kTiles>(total, sum, scales + local * staging.kTokens,
                                weight_scales + (local << p.log2_group_warps));
      stage = stage + 1 == p.stages ? 0 : stage + 1;
    }
  }
  finish<kTiles>(p, place, total, reinterpret_cast<float*>(shared));
}

}  // namespace fathom::ops::gemm
