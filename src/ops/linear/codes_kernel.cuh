// The streaming product kernel for products of codes as they are (sm_90a): x and weights go from the copy unit to the
// fp8 tensor cores.
//
// Those align the products of 32 columns to the largest of them and drop bits below about 2^-13 of it, so sums of 32
// columns are scaled and added in fp32. A block has 128 rows and one slice of K. Two warpgroups have 64 rows each, with
// 64 tokens four have half of the tokens each; one more warp asks for boxes, a stage of which is 128 columns of the
// rows and of the tokens. Slices meet as in stream_kernel.cuh.
#pragma once

#include "ops/linear/codes_params.h"
#include "ops/linear/stream_kernel.cuh"

namespace fathom::ops::stream {

/// Shared memory: barriers; x scales times weight scales, fp32 [unit of the slice][token]; then stages, weights
/// [128 rows][128] and x [token][128] in 128-byte swizzle. Sums take the place of the stages.
template <int kTiles>
struct CodesStaging {
  static constexpr int kTokens = tokens_of(kTiles), kBytes = codes_stage_bytes(kTiles);
  Phases *received, *full, *empty;
  float* factors;
  std::byte* stages;

  FATHOM_DEVICE CodesStaging(const Params& p, std::byte* shared) {
    received = reinterpret_cast<Phases*>(shared), full = received + 1, empty = full + p.stages;
    factors = reinterpret_cast<float*>(shared + kCodesBarriers);
    stages = shared + codes_header(kTiles, p.units, p.log2_slices);
  }
  FATHOM_DEVICE float* sums() const { return reinterpret_cast<float*>(stages); }
};

/// Asks for all units of the slice; for x from the moment on when the previous kernel has ended.
template <int kTiles>
FATHOM_DEVICE void bring_codes(const Params& p, const Maps& maps, const Place& at, const Slice& slice,
                               const CodesStaging<kTiles>& shared) {
  const auto weights = [&](int i, int stage) {
    device::arrive_and_expect(shared.full + stage, shared.kBytes);
    device::copy_weight_box(shared.stages + stage * shared.kBytes, &maps.w[at.part], (slice.begin + i) * kUnitColumns,
                            at.row, 0, shared.full + stage);
  };
  const auto x = [&](int i, int stage) {
    device::copy_box(shared.stages + stage * shared.kBytes + kCodesRowBytes, &maps.x, (slice.begin + i) * kUnitColumns,
                     at.first_token, 0, shared.full + stage);
  };
  const int first = p.stages < slice.count ? p.stages : slice.count;
  for (int i = 0; i < first; ++i) weights(i, i);
  device::wait_for_previous_kernel();
  for (int i = 0; i < first; ++i) x(i, i);
  int stage = 0, round = 0;
  FATHOM_UNROLL_1
  for (int i = first; i < slice.count; ++i) {
    device::await(shared.empty + stage, round);
    weights(i, stage), x(i, stage);
    if (++stage == p.stages) stage = 0, ++round;
  }
}

/// Scales of the slice, by the consumers.
template <int kTiles>
FATHOM_DEVICE void load_factors(const Params& p, const Place& at, const Slice& slice,
                                const CodesStaging<kTiles>& shared) {
  constexpr int kTokens = CodesStaging<kTiles>::kTokens, kThreads = 32 * codes_consumers(kTiles);
  const uint8_t* weight_scale = at.weight_scale(p) + slice.begin;
  FATHOM_UNROLL_4
  for (int i = device::thread_index(); i < slice.count * kTokens; i += kThreads) {
    const int unit = i / kTokens, token = i % kTokens;
    float factor = 0;
    if (token < at.tokens)
      factor = to_float(e8m0{weight_scale[unit]}) *
               to_float(e8m0{p.x_scale[(at.first_token + token) * p.x_scale_stride + slice.begin + unit]});
    shared.factors[i] = factor;
  }
  device::sync_first<kThreads>();
}

/// total += sum * factor, where column tile j has factors 2 j for even tokens and 2 j + 1 for odd ones.
template <int kTiles>
FATHOM_DEVICE void add_scaled(float (&total)[4 * kTiles], const float (&sum)[4 * kTiles],
                              const float (&factor)[2 * kTiles]) {
  FATHOM_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) total[i] = fmaf(sum[i], factor[i / 4 * 2 + i % 2], total[i]);
}

/// total = this warpgroup's sums of the slice, of tokens from `token` of the tile on: register 4 j + i of column tile j
/// as in mma_bf16.
template <int kTiles, int kMine>
FATHOM_DEVICE void multiply_codes(const Params& p, const Place& at, const Slice& slice,
                                  const CodesStaging<kTiles>& shared, int token, float (&total)[4 * kMine]) {
  constexpr int kProducts = kUnitColumns / 32;  // of 32 columns
  const auto weights = device::describe_matrix(shared.stages + at.warp / 4 % 2 * (64 * kUnitColumns), 16, 1024);
  const auto x = device::describe_matrix(shared.stages + kCodesRowBytes + token * kUnitColumns, 16, 1024);
  int stage = 0, round = 0;
  FATHOM_UNROLL_1
  for (int unit = 0; unit < slice.count; ++unit) {
    float factor[2 * kMine], sum[4 * kMine];
    const float* factors = shared.factors + unit * shared.kTokens + token + at.lane % 4 * 2;
    FATHOM_UNROLL
    for (int j = 0; j < kMine; ++j) factor[2 * j] = factors[8 * j], factor[2 * j + 1] = factors[8 * j + 1];
    const int offset = stage * shared.kBytes;
    device::await(shared.full + stage, round);
    FATHOM_UNROLL
    for (int i = 0; i < kProducts; ++i) {
      device::multiply_begin();
      device::multiply_64_rows_e4m3<kMine>(sum, device::behind(weights, offset + i * 32),
                                           device::behind(x, offset + i * 32), false);
      device::multiply_commit();
      device::multiply_wait<0>();
      if (i == kProducts - 1) {
        device::sync_warp();
        if (at.lane == 0) device::arrive(shared.empty + stage);
      }
      add_scaled<kMine>(total, sum, factor);
    }
    if (++stage == p.stages) stage = 0, ++round;
  }
}

/// Grid as in multiply_tile.
template <int kTiles>
FATHOM_DEVICE void codes_block(const Params& p, const Maps& maps, std::byte* memory) {
  constexpr int kWarps = codes_consumers(kTiles), kMine = kTiles * kConsumers / kWarps;
  const Place at(p, tokens_of(kTiles));
  const CodesStaging<kTiles> shared(p, memory);
  const Slice slice(p, 0);
  const bool consumer = at.warp < kWarps, alone = p.log2_slices == 0;
  if (at.warp == kWarps && at.lane == 0) {
    device::init_phases(shared.received, 1);
    for (int i = 0; i < p.stages; ++i)
      device::init_phases(shared.full + i, 1), device::init_phases(shared.empty + i, kWarps);
    device::publish_phases();
  }
  device::sync_block();
  const int token = at.warp / kConsumers * (8 * kMine);
  float total[4 * kMine] = {};
  if (consumer) {
    device::wait_for_previous_kernel();
    device::let_next_kernel_start();  // not earlier: whoever starts may rely on all that came before this kernel
    load_factors<kTiles>(p, at, slice, shared);
    multiply_codes<kTiles, kMine>(p, at, slice, shared, token, total);
  } else if (at.lane == 0) {
    bring_codes<kTiles>(p, maps, at, slice, shared);
  }
  device::sync_warp();
  device::sync_block();  // stages have been read
  if (!alone) device::arrive_cluster_relaxed();
  if (consumer) put_sums<kMine>(shared.sums() + token * kRowFloats, total, at.warp % kConsumers, at.lane);
  // Not by the warp that asked: racecheck, which loses its count of barriers at the one that only the others meet at
  // (load_factors), takes its reads for a race in spite of the barrier before them.
  add_slices<kWarps>(p, at, shared, [&](int t, int row, const float(&sum)[4]) {
    store_row_quad(p.part[at.part], at.row + row, t, sum);
  });
}

}  // namespace fathom::ops::stream
