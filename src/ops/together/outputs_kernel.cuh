// wo_a, the quantiser of z and wo_b for few tokens in one launch (sm_90).
//
// A block has rows of wo_a and of wo_b, one block a multiprocessor. A warp's ring (ops/experts/moe_few_product.cuh)
// goes on from its rows of wo_a to those of wo_b, so memory is busy before o is there and while blocks hand z over at a
// gate in memory. Each block quantises all of z for itself.
//
// Codes become fp16, which is exact. So do activations: z as codes without their scale, o times a power of two for each
// 128 columns (what is 2^28 times smaller than the largest of them is rounded). Products are summed in fp32, those of
// 128 columns are scaled and added. Other slices than the single operations have, so other last bits: for --fast.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/experts/moe_few_both.cuh"
#include "ops/residual_mix/end_kernel.cuh"
#include "ops/together/outputs_plan.h"

namespace fathom::ops::together {

struct OutputMaps {
  device::TensorMap a, b;
};
template <typename Describe>
OutputMaps describe_outputs(const OutputParams& p, const Describe& describe) {
  return {describe(device::Planes{p.a.codes, p.a.row_bytes, 0, p.a.rows, 1}),
          describe(device::Planes{p.b.codes, p.b.row_bytes, 0, p.b.rows, 1})};
}

/// The two tasks of a warp, for the ring: 16 rows times a slice of wo_a, then of wo_b.
struct OutputTasks {
  const OutputParams& p;
  const OutputMaps& maps;
  int warp, count = 2;

  FATHOM_DEVICE int log2_tiles(bool second) const { return second ? 1 : p.log2_tiles; }
  FATHOM_DEVICE moe::FewTask get(int n) const {
    const int log2 = log2_tiles(n == 1);
    return {-1, 0, warp >> log2, warp & ((1 << log2) - 1), n == 1};
  }
  FATHOM_DEVICE const moe::Weight& weight(const moe::FewTask& t, int) const { return t.down ? p.b : p.a; }
  FATHOM_DEVICE const device::TensorMap* map(const moe::FewTask& t, int) const { return t.down ? &maps.b : &maps.a; }
  FATHOM_DEVICE int first_row(bool second) const { return (device::block_x() << log2_tiles(second)) * moe::kGroupRows; }
  FATHOM_DEVICE int row_of(const moe::FewTask& t, int) const { return first_row(t.down) + t.part * moe::kGroupRows; }
  FATHOM_DEVICE int log2_slices(const moe::FewTask& t) const { return 4 - log2_tiles(t.down); }
};
static_assert(kOutputWarps == 16 && kOutputRows == kSumChannels);

/// The power of two that takes values of at most `most` to fp16: the largest becomes 2^14 to 2^15.
FATHOM_DEVICE uint32_t exponent_of(float most) {
  const uint32_t exponent = std::bit_cast<uint32_t>(most) >> 23;
  return exponent < 32 ? 32 : exponent;
}

/// Takes `groups` blocks of 128 channels of every token to shared memory, as fp16, and what they are to be scaled by.
/// `quantise`: to e4m3. `at(token, group)`: where they begin. Half a warp has a block; all threads.
template <typename At>
FATHOM_DEVICE void stage_blocks(int tokens, int groups, bool quantise, std::byte* rows, int pitch, float* scales,
                                const At& at) {
  constexpr int kRound = 2 * kOutputWarps, kRounds = 2;
  const int lane = device::lane_index(), own = 2 * device::warp_index() + lane / 16;
  FATHOM_UNROLL_1
  for (int token = 0; token < tokens; ++token) {
    FATHOM_UNROLL_1
    for (int first = 0; first < groups; first += kRounds * kRound) {
      device::Float4 eight[kRounds] = {};
      FATHOM_UNROLL
      for (int r = 0; r < kRounds; ++r)
        if (first + r * kRound + own < groups)
          eight[r] = device::load_l2(at(token, first + r * kRound + own) + lane % 16);
      FATHOM_UNROLL
      for (int r = 0; r < kRounds; ++r) {
        const int group = first + r * kRound + own;
        const float pair[4] = {eight[r].x, eight[r].y, eight[r].z, eight[r].w};
        float v[8];
        FATHOM_UNROLL
        for (int i = 0; i < 4; ++i)
          v[2 * i] = device::low_half(moe::word(pair[i])), v[2 * i + 1] = device::high_half(moe::word(pair[i]));
        const float most = device::group_max(device::largest(v), 16);
        const e8m0 of_codes = e4m3_scale(most);
        const uint32_t exponent = exponent_of(most);
        const float inverse = quantise ? reciprocal(of_codes) : std::bit_cast<float>((268 - exponent) << 23);
        uint32_t half[4];
        FATHOM_UNROLL
        for (int i = 0; i < 4; ++i) {
          float low = v[2 * i] * inverse, high = v[2 * i + 1] * inverse;
          if (quantise) low = moe::round_e4m3(low), high = moe::round_e4m3(high);
          half[i] = device::pack_f16x2(low, high);
        }
        if (group >= groups) continue;
        *reinterpret_cast<device::Words4*>(rows + token * pitch + group * moe::kBlockBytes + lane % 16 * 16) = {
            half[0], half[1], half[2], half[3]};
        if (lane % 16 == 0)
          scales[group * kScaledTokens + token] =
              quantise ? to_float(of_codes) : std::bit_cast<float>((exponent - 14) << 23);
      }
    }
  }
}

/// sum += 16 rows x 128 columns. `x`: this lane's token, the same columns.
FATHOM_DEVICE void multiply_box(float (&sum)[4], const moe::FewRing& ring, int box, const std::byte* x, int lane) {
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {  // 16 codes of either row, columns 64 half + 16 t on
    moe::Unit unit;
    ring.read(unit, box, half);
    const float low[4] = {unit.low.x, unit.low.y, unit.low.z, unit.low.w};
    const float high[4] = {unit.high.x, unit.high.y, unit.high.z, unit.high.w};
    FATHOM_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      const auto b = *reinterpret_cast<const device::Words4*>(x + half * 128 + lane % 4 * 32 + pair * 16);
      FATHOM_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t upper = moe::word(low[2 * pair + i]), lower = moe::word(high[2 * pair + i]);
        const uint32_t a[4] = {device::e4m3_pair_to_f16x2(upper), device::e4m3_pair_to_f16x2(lower),
                               device::e4m3_pair_to_f16x2(upper >> 16), device::e4m3_pair_to_f16x2(lower >> 16)};
        device::mma_f16(sum, a, b.word[2 * i], b.word[2 * i + 1]);
      }
    }
  }
}

/// A whole task. `x`: the row of this lane's token; `scales`: of weights, lane n has that of block n of the slice;
/// `x_scales`: of the columns of the first token in this lane's sums.
FATHOM_DEVICE void multiply_task(float (&total)[4], moe::FewRing& ring, const OutputTasks& tasks, const moe::FewTask& t,
                                 uint32_t scales, const std::byte* x, const float* x_scales, int lane) {
  const moe::FewSlice s = moe::slice_of(tasks.weight(t, 0), t, tasks.log2_slices(t));
  const int boxes = s.units / 2;
  x += s.first * moe::kBlockBytes, x_scales += s.first * kScaledTokens;
  total[0] = total[1] = total[2] = total[3] = 0;
  FATHOM_UNROLL_1
  for (int box = 0; box < boxes; ++box, x += moe::kBlockBytes, x_scales += kScaledTokens) {
    if (box % 2 == 0) ring.wait(), ring.fill(tasks);
    float sum[4] = {};
    multiply_box(sum, ring, box % 2, x, lane);
    const float scale = to_float(e8m0{static_cast<uint8_t>(moe::shuffle_word(scales, box))});
    const float even = scale * x_scales[0], odd = scale * x_scales[1];
    total[0] = fmaf(sum[0], even, total[0]), total[1] = fmaf(sum[1], odd, total[1]);
    total[2] = fmaf(sum[2], even, total[2]), total[3] = fmaf(sum[3], odd, total[3]);
    if (box % 2 == 1 || box + 1 == boxes) ring.advance();
  }
}

/// Adds the slices of the block's rows and stores them as bf16; all threads. `keep`: those of wo_b also there,
/// [token][32]; null: not.
FATHOM_DEVICE void finish_rows(const OutputParams& p, const OutputTasks& tasks, bool second, const float* sums,
                               float* keep) {
  const int log2 = 4 + tasks.log2_tiles(second), rows = 1 << log2, slices = 16 >> tasks.log2_tiles(second);
  const int first_row = tasks.first_row(second);
  bf16* to = second ? p.y : p.z;
  const int64_t stride = second ? p.y_stride : p.z_stride;
  FATHOM_UNROLL_1
  for (int i = device::thread_index(); i < p.tokens << log2; i += 32 * kOutputWarps) {
    const int row = i & (rows - 1), token = i >> log2;
    float total = 0;
    FATHOM_UNROLL_1
    for (int s = 0; s < slices; ++s) total += sums[((s << log2) + row) * p.tokens + token];
    to[token * stride + first_row + row] = to_bf16(total);
    if (second && keep) keep[i] = total;
  }
}

/// Grid: rows of wo_b / 32.
FATHOM_DEVICE void outputs_block(const OutputParams& p, const OutputMaps& maps, std::byte* shared) {
  const int lane = device::lane_index();
  const OutputTasks tasks{p, maps, device::uniform(device::warp_index())};
  moe::FewRing ring(p.layout, shared, lane);
  ring.fill(tasks);
  const mix::EndMemory end(shared + p.layout.end);
  if (p.end.streams) mix::ask_end(p.end, p.tokens, end, 32 * kOutputWarps);
  const uint32_t scales[2] = {moe::shared_scales(tasks, 0, lane), moe::shared_scales(tasks, 1, lane)};
  std::byte* rows = shared + p.layout.rows;
  auto* sums = reinterpret_cast<float*>(shared + p.layout.sums);
  auto* x_scales = reinterpret_cast<float*>(shared + p.scales);
  const int token = lane / 4 < p.tokens ? lane / 4 : p.tokens - 1;
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const uint32_t target = moe::read_gate(p.gate);
  FATHOM_UNROLL_1
  for (int n = 0; n < 2; ++n) {
    const bool second = n == 1;
    if (second) moe::pass_gate(p.gate, target);
    const int pitch = second ? p.z_pitch : p.x_pitch;
    const std::byte* group = p.o + tasks.first_row(false) / p.rank * p.group_heads * p.head_bytes;
    stage_blocks(p.tokens, second ? p.b.blocks : p.a.blocks, second, rows, pitch, x_scales, [&](int t, int block) {
      return reinterpret_cast<const device::Float4*>(
          second ? reinterpret_cast<const std::byte*>(p.z + t * p.z_stride) + block * moe::kBlockBytes
                 : group + t * p.token_bytes + block / 4 * p.head_bytes + block % 4 * moe::kBlockBytes);
    });
    device::sync_block();
    const moe::FewTask t = tasks.get(n);
    float sum[4];
    multiply_task(sum, ring, tasks, t, second ? scales[1] : scales[0], rows + token * pitch, x_scales + lane % 4 * 2,
                  lane);
    const int place = ((t.slice << tasks.log2_tiles(second)) + t.part) * moe::kGroupRows;
    moe::for_few_sums(sum, p.tokens, lane, [&](int i, int row, float v) { sums[(place + row) * p.tokens + i] = v; });
    if (second) device::copy_async_wait<0>();
    device::sync_block();
    finish_rows(p, tasks, second, sums, p.end.streams ? end.y : nullptr);
  }
  if (!p.end.streams) return;
  device::sync_block();
  mix::end_slice(p.end, p.tokens, end);
}

}  // namespace fathom::ops::together
