// Splits of one token's rows become one output: inside the launch, in a fixed order of summation.
//
// Every block leaves (reference, sum) of each head and its output, divided by that sum, as fp16 in units of a power of
// two that each slice of channels chooses: 2e-4 of relative error before the output's own 1.7e-3. Then all blocks of
// the unit (token, group of heads) share the final sum, each taking a part of the channels. Through global memory the
// blocks meet at one 64-bit word a unit: its upper half counts arrivals in such a way that every launch adds exactly
// 64, so it never needs a reset; a block waits for the count to pass the next multiple of 64, but only for a while: if
// its patience ends (or has none, when the grid is larger than the GPU), it sets its bit in the lower half and leaves,
// and the last block to arrive does that part too. So nothing depends on which blocks run at the same time.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_output.cuh"

namespace fathom::ops::sparse_decode {

inline constexpr int kMostSplits = 32;
inline constexpr int kCountShift = 32;
inline constexpr uint64_t kArrivalsPerLaunch = 64;

FATHOM_DEVICE uint64_t launches(uint64_t word) {
  return word >> kCountShift >> 6;
}

/// Where the partial results of a unit lie.
template <typename G>
struct Partials {
  static constexpr int kStateFloats = 2 * G::kHeads + G::kMTiles * kWarps;
  const Params& p;
  int unit;

  FATHOM_DEVICE float* state(int split) const {
    return p.state + (static_cast<int64_t>(unit) * device::grid_x() + split) * kStateFloats;
  }
  FATHOM_DEVICE float* factor(int split, int m, int slice) const {
    return state(split) + 2 * G::kHeads + m * kWarps + slice;
  }
  FATHOM_DEVICE uint64_t* quads(int split) const {
    return p.partial + (static_cast<int64_t>(unit) * device::grid_x() + split) * G::kQuads;
  }
};

FATHOM_DEVICE int quad_index(int m, int slice, int quad, int lane) {
  return ((m * kWarps + slice) * 8 + quad) * 32 + lane;
}

/// Four floats as four fp16.
FATHOM_DEVICE uint64_t pack_quad(const float (&v)[4]) {
  return device::pack_f16x2(v[0], v[1]) | static_cast<uint64_t>(device::pack_f16x2(v[2], v[3])) << 32;
}
FATHOM_DEVICE void unpack_quad(uint64_t quad, float (&v)[4]) {
  device::unpack_f16x2(static_cast<uint32_t>(quad), &v[0], &v[1]);
  device::unpack_f16x2(static_cast<uint32_t>(quad >> 32), &v[2], &v[3]);
}

/// Exponent that brings values of at most `most` below 2^15: multiply with 2^it.
FATHOM_DEVICE int headroom(float most) {
  const auto exponent = static_cast<int>(std::bit_cast<uint32_t>(most) >> 23);
  return 141 - (exponent < 16 ? 16 : exponent);
}

/// Divides a warp's output by the sums of its heads and brings it into the range of fp16. Returns what 1 stands for
/// then. Slices of codes are in range: a code is at most 480, its scale at most 2^6 units.
template <typename G, bool kFp8>
FATHOM_DEVICE float normalise(const float* state, Output<G>& output) {
  const int g = device::thread_index() % 32 / 4;
  float most = 0;
  FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m) FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = state[2 * (16 * m + 8 * half + g) + 1], inverse = sum > 0 ? 1.0f / sum : 0.0f;
    FATHOM_UNROLL
    for (int n = 0; n < 8; ++n) FATHOM_UNROLL
    for (int i = 0; i < 2; ++i) {
      float& v = output.sum[m][n][2 * half + i];
      v *= inverse;
      if (!kFp8) most = fabsf(v) > most ? fabsf(v) : most;
    }
  }
  if (kFp8) return power_of_two(output.unit - 127);
  const int room = headroom(std::bit_cast<float>(device::largest_of_warp(std::bit_cast<uint32_t>(most))));
  output.scale_by(power_of_two(room));
  return power_of_two(output.unit - 127 - room);
}

/// Leaves the warp's slice of a block's output.
template <typename G, bool kFp8>
FATHOM_DEVICE void store_quads(const Shared<G>& shared, const Partials<G>& partials, int split, Output<G>& output) {
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  const float factor = normalise<G, kFp8>(shared.state(), output);
  uint64_t* to = partials.quads(split);
  FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m) FATHOM_UNROLL
  for (int quad = 0; quad < 8; ++quad) {
    float v[4];
    take_quad<kFp8>(output.sum[m], quad / 4, quad % 4, v);
    to[quad_index(m, warp, quad, lane)] = pack_quad(v);
  }
  if (lane < G::kMTiles) *partials.factor(split, lane, warp) = factor;
}

/// A lane's share of the weights of its head's splits: the four lanes of a head hold splits t, t+4, t+8 ...
template <int kCount>
struct SplitWeights {
  float weight[kCount];
  float lse;

  /// Weight of split `i` (a constant below 4 kCount), and the step to the next `kStep` splits (a multiple of 4).
  FATHOM_DEVICE float of(int i) const {
    return device::shuffle_from(weight[i / 4], device::thread_index() % 32 / 4 * 4 + i % 4);
  }
  template <int kStep>
  FATHOM_DEVICE void advance() {
    FATHOM_UNROLL
    for (int k = 0; k + kStep / 4 < kCount; ++k) weight[k] = weight[k + kStep / 4];
  }
};

FATHOM_DEVICE float largest_of_head(float v) {
  const float a = device::shuffle_xor(v, 1);
  v = a > v ? a : v;
  const float b = device::shuffle_xor(v, 2);
  return b > v ? b : v;
}

/// The states of this lane's splits and the factors of one slice, loaded first so that everything else is on its way
/// meanwhile.
template <int kCount>
struct SplitStates {
  float reference[kCount], sum[kCount], factor[kCount];

  template <typename G>
  FATHOM_DEVICE static SplitStates load(const Partials<G>& partials, int blocks, int local, int slice) {
    SplitStates s;
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const int split = 4 * k + device::thread_index() % 4;
      s.reference[k] = -__builtin_huge_valf(), s.sum[k] = s.factor[k] = 0;
      if (split >= blocks) continue;
      device::load_l2_pair(partials.state(split) + 2 * local, &s.reference[k], &s.sum[k]);
      s.factor[k] = device::load_l2(partials.factor(split, local / 16, slice));
    }
    return s;
  }
  FATHOM_DEVICE SplitWeights<kCount> weights(float sink) const {
    float most = reference[0];
    FATHOM_UNROLL
    for (int k = 1; k < kCount; ++k) most = reference[k] > most ? reference[k] : most;
    most = largest_of_head(most);
    SplitWeights<kCount> w;
    float total = 0;
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) {
      w.weight[k] = most == -__builtin_huge_valf() ? 0.0f : sum[k] * device::exp2_fast(reference[k] - most);
      total += w.weight[k];
      w.weight[k] *= factor[k];
    }
    total += device::shuffle_xor(total, 1);
    total += device::shuffle_xor(total, 2);
    const HeadResult result = head_result(sink, most, total);
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) w.weight[k] *= result.inverse;
    w.lse = result.lse;
    return w;
  }
};

/// Quads that a warp sums together where there are more quads than warps: as many as registers allow.
template <typename G>
inline constexpr int kCoarse = G::kMTiles > 1                ? 4
                               : G::kFormat == RowFormat::v4 ? 2
                                                             : 1;

/// The weighted sums over the splits of kQuads quads (1, 2 or 4 of one half) of a slice, rounded: two pairs of channels
/// each, of head 16 m + 8 (quad / 4) + g. All loads of several splits are in flight together.
template <typename G, int kQuads>
FATHOM_DEVICE void sum_quads(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head,
                             int blocks, int m, int slice, int quad, uint32_t (&word)[kQuads][2]) {
  constexpr int kAhead = 16 / kQuads < 8 ? 8 : 16 / kQuads;
  const Params& p = partials.p;
  const int lane = device::thread_index() % 32, local = 16 * m + 8 * (quad / 4) + lane / 4, head = first_head + local;
  const int at = quad_index(m, slice, quad, lane);
  const auto states = SplitStates<kMostSplits / 4>::load(partials, blocks, local, slice);
  uint64_t ahead[kAhead][kQuads];
  const auto load = [&](int i, int split) {
    FATHOM_UNROLL
    for (int q = 0; q < kQuads; ++q)
      if (split < blocks) ahead[i][q] = device::load_l2(partials.quads(split) + at + 32 * q);
  };
  FATHOM_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    FATHOM_UNROLL
    for (int q = 0; q < kQuads; ++q) ahead[i][q] = 0;
    load(i, i);
  }
  auto weights = states.weights(shared.sinks()[local]);
  if (p.lse && slice == 0 && quad % 4 == 0 && lane % 4 == 0 && head < p.heads)
    p.lse[token * p.lse_token_stride + head] = weights.lse;
  float sum[kQuads][4] = {};
  FATHOM_UNROLL_1
  for (int first = 0; first < blocks; first += kAhead) {
    FATHOM_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const float w = weights.of(i);  // 0 beyond the last split
      FATHOM_UNROLL
      for (int q = 0; q < kQuads; ++q) {
        float v[4];
        unpack_quad(ahead[i][q], v);
        FATHOM_UNROLL
        for (int k = 0; k < 4; ++k) sum[q][k] += w * v[k];
      }
      load(i, first + kAhead + i);
    }
    weights.template advance<kAhead>();
  }
  FATHOM_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    word[q][0] = device::pack_bf16x2(sum[q][0], sum[q][1]);
    word[q][1] = device::pack_bf16x2(sum[q][2], sum[q][3]);
  }
}

/// Stores two pairs of channels of quad `quad` of a slice, turned back by RoPE where that applies.
template <typename G>
FATHOM_DEVICE void store_pairs(const Shared<G>& shared, const Params& p, int token, int head, int slice, int quad,
                               uint32_t (&word)[2]) {
  const int t = device::thread_index() % 4;
  const bool fp8 = slice_is_fp8(G::kFormat, slice);
  const int a = first_pair(fp8, quad % 4, t), b = second_pair(fp8, quad % 4, t);
  if (slice == kRopeGroup && p.position) {
    word[0] = turn_back(word[0], shared.rotations()[a / 2]);
    word[1] = turn_back(word[1], shared.rotations()[b / 2]);
  }
  uint16_t* out = p.out + token * p.out_token_stride + head * p.out_head_stride + slice * kGroup;
  *reinterpret_cast<uint32_t*>(out + a) = word[0];
  *reinterpret_cast<uint32_t*>(out + b) = word[1];
}

/// Quads of the final sum straight to the bf16 output.
template <typename G, int kQuads>
FATHOM_DEVICE void combine_quads(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head,
                                 int blocks, int m, int slice, int quad) {
  const Params& p = partials.p;
  const int head = first_head + 16 * m + 8 * (quad / 4) + device::thread_index() % 32 / 4;
  uint32_t word[kQuads][2];
  sum_quads<G, kQuads>(shared, partials, token, first_head, blocks, m, slice, quad, word);
  if (head >= p.heads) return;
  FATHOM_UNROLL
  for (int q = 0; q < kQuads; ++q) store_pairs<G>(shared, p, token, head, slice, quad + q, word[q]);
}

/// 128 channels of 8 heads by one warp, with codes, by way of rows in shared memory.
template <typename G>
FATHOM_DEVICE void combine_group(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head,
                                 int blocks, int m, int half, int slice, std::byte* rows) {
  constexpr int kPitch = 256 + 16;
  const int lane = device::thread_index() % 32, g = lane / 4, t = lane % 4;
  FATHOM_UNROLL_1
  for (int i = 0; i < 8; i += kCoarse<G>) {
    uint32_t word[kCoarse<G>][2];
    const int s = slice + i / 4;
    sum_quads<G, kCoarse<G>>(shared, partials, token, first_head, blocks, m, s, 4 * half + i % 4, word);
    const bool fp8 = slice_is_fp8(G::kFormat, s);
    std::byte* row = rows + g * kPitch + i / 4 * 128;
    FATHOM_UNROLL
    for (int q = 0; q < kCoarse<G>; ++q) {
      *reinterpret_cast<uint32_t*>(row + 2 * first_pair(fp8, i % 4 + q, t)) = word[q][0];
      *reinterpret_cast<uint32_t*>(row + 2 * second_pair(fp8, i % 4 + q, t)) = word[q][1];
    }
  }
  device::sync_warp();
  FATHOM_UNROLL_1
  for (int i = 0; i < 4; ++i) {
    const int row = 2 * i + lane / 16, head = first_head + 16 * m + 8 * half + row, channel = lane % 16 * 8;
    uint32_t word[4];
    __builtin_memcpy(word, rows + row * kPitch + channel * 2, sizeof(word));
    finish_channels<G>(shared, partials.p, token, head, slice * kGroup + channel, head < partials.p.heads, word);
  }
  device::sync_warp();
}

/// Part `part` of `parts` of the unit's final sum.
template <typename G>
FATHOM_DEVICE void combine_part(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head,
                                int blocks, int part, int parts) {
  const int warp = device::thread_index() / 32;
  if (partials.p.codes) {  // whole groups of 128 channels, for their scale
    std::byte* rows = shared.base + G::kGroupRowsAt + warp * 8 * (256 + 16);
    FATHOM_UNROLL_1
    for (int item = part * kWarps + warp; item < G::kMTiles * 8; item += parts * kWarps)
      combine_group<G>(shared, partials, token, first_head, blocks, item / 8, item / 4 % 2, item % 4 * 2, rows);
  } else if (G::kMTiles * 64 <= parts * kWarps) {  // enough warps for the finest grain
    for (int item = part * kWarps + warp; item < G::kMTiles * 64; item += parts * kWarps)
      combine_quads<G, 1>(shared, partials, token, first_head, blocks, item / 64, item / 8 % 8, item % 8);
  } else {
    FATHOM_UNROLL_1
    for (int item = part * kWarps + warp; item < G::kMTiles * 64 / kCoarse<G>; item += parts * kWarps) {
      const int quad = item * kCoarse<G>;
      combine_quads<G, kCoarse<G>>(shared, partials, token, first_head, blocks, quad / 64, quad / 8 % 8, quad % 8);
    }
  }
}

/// Thread 0: reports this split, waits for the others as far as patience goes. Returns the set of parts to do.
FATHOM_DEVICE uint32_t arrive(const Params& p, int unit, int split, int blocks, uint64_t before) {
  uint64_t* word = p.arrivals + unit;
  device::fence();
  const uint64_t adds = split == 0 ? kArrivalsPerLaunch + 1 - static_cast<uint64_t>(blocks) : 1;
  const uint32_t mine = 1u << split;
  const uint64_t old = device::atomic_add(word, adds << kCountShift);
  if (launches(old + (adds << kCountShift)) != launches(before)) {  // the last to come
    const auto left = static_cast<uint32_t>(old);
    if (left) device::atomic_and(word, ~static_cast<uint64_t>(left));
    device::fence();
    return left | mine;
  }
  for (const int64_t start = device::cycles(); device::cycles() - start < p.patience; device::rest())
    if (launches(device::load_relaxed(word)) != launches(before)) {
      device::fence();
      return mine;
    }
  if (launches(device::atomic_or(word, mine)) == launches(before)) return 0;
  device::atomic_and(word, ~static_cast<uint64_t>(mine));  // complete after all: nobody else saw the bit
  device::fence();
  return mine;
}

}  // namespace fathom::ops::sparse_decode
