// Splits of one token's rows become one output: inside the launch, in a fixed order of summation.
//
// Every block leaves (reference, sum) of each head and its unnormalised fp32 output. Then all blocks of the unit (token,
// group of heads) share the final sum, each taking a part of the channels. Through global memory the blocks meet at one
// 64-bit word a unit: its upper half counts arrivals in such a way that every launch adds exactly 64, so it never needs
// a reset; a block waits for the count to pass the next multiple of 64, but only for a while: if its patience ends (or
// has none, when the grid is larger than the GPU), it sets its bit in the lower half and leaves, and the last block to
// arrive does that part too. So nothing depends on which blocks run at the same time. In a cluster the blocks read each
// other's shared memory between two cluster barriers.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_output.cuh"

namespace fathom::ops::sparse_decode {

inline constexpr int kMostSplits = 32;
inline constexpr int kCountShift = 32;
inline constexpr uint64_t kArrivalsPerLaunch = 64;

FATHOM_DEVICE uint64_t launches(uint64_t word) { return word >> kCountShift >> 6; }

/// Where the partial results of a unit lie.
template <typename G, bool kCluster>
struct Partials {
  const Params& p;
  std::byte* base;
  int unit;

  FATHOM_DEVICE float* state(int split) const {
    if constexpr (kCluster) {
      return device::in_cluster_block(reinterpret_cast<float*>(base + G::kClusterStateAt), split);
    } else {
      return p.state + (static_cast<int64_t>(unit) * device::grid_x() + split) * (2 * G::kHeads);
    }
  }
  FATHOM_DEVICE device::Float4* quads(int split) const {
    if constexpr (kCluster) {
      return device::in_cluster_block(reinterpret_cast<device::Float4*>(base + G::kWeightBytes), split);
    } else {
      return reinterpret_cast<device::Float4*>(p.partial) +
             (static_cast<int64_t>(unit) * device::grid_x() + split) * G::kQuads;
    }
  }
  FATHOM_DEVICE static device::Float4 load(const device::Float4* from) {
    if constexpr (kCluster) return *from;
    else return device::load_l2(from);
  }
  FATHOM_DEVICE static float load(const float* from) {
    if constexpr (kCluster) return *from;
    else return device::load_l2(from);
  }
};

FATHOM_DEVICE int quad_index(int m, int slice, int quad, int lane) { return ((m * kWarps + slice) * 8 + quad) * 32 + lane; }

template <typename G, bool kFp8>
FATHOM_DEVICE void store_quads(device::Float4* to, const Output<G>& output) {
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m)
FATHOM_UNROLL
    for (int quad = 0; quad < 8; ++quad) {
      float v[4];
      take_quad<kFp8>(output.sum[m], quad / 4, quad % 4, v);
      to[quad_index(m, warp, quad, lane)] = {v[0], v[1], v[2], v[3]};
    }
}

/// Weight of every split for every head -> weight[head][32]; writes lse when told to.
template <typename G, bool kCluster>
FATHOM_DEVICE void split_weights(const Partials<G, kCluster>& partials, int token, int first_head, int blocks,
                                 bool write_lse, float* weight) {
  const Params& p = partials.p;
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  for (int local = warp; local < G::kHeads; local += kWarps) {
    const int head = first_head + local;
    if (head >= p.heads) break;
    float reference = -__builtin_huge_valf(), sum = 0;
    if (lane < blocks) {
      const float* state = partials.state(lane) + 2 * local;
      reference = partials.load(state), sum = partials.load(state + 1);
    }
    float most = reference;
FATHOM_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) {
      const float other = device::shuffle_xor(most, mask);
      most = other > most ? other : most;
    }
    const float share = most == -__builtin_huge_valf() ? 0.0f : device::exp2_fast(reference - most);
    float total = sum * share;
FATHOM_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) total += device::shuffle_xor(total, mask);
    const HeadResult result = head_result(p, head, most, total);
    weight[local * kMostSplits + lane] = share * result.inverse;
    if (write_lse && lane == 0 && p.lse) p.lse[token * p.lse_token_stride + head] = result.lse;
  }
}

/// One warp's item of the final sum: kSlices slices x 4 / kParts quads of the heads 16 m + 8 half + (0..7).
template <typename G, bool kCluster, int kSlices, int kQuads>
FATHOM_DEVICE void combine_item(const Partials<G, kCluster>& partials, int token, int first_head, int blocks,
                                const float* weight, int m, int half, int first_slice, int first_quad) {
  const Params& p = partials.p;
  const int lane = device::thread_index() % 32, g = lane / 4, t = lane % 4;
  const int local = 16 * m + 8 * half + g, head = first_head + local;
  float sum[kSlices][kQuads][4] = {};
FATHOM_UNROLL_4
  for (int split = 0; split < blocks; ++split) {
    const device::Float4* quads = partials.quads(split);
    const float w = head < p.heads ? weight[local * kMostSplits + split] : 0.0f;
FATHOM_UNROLL
    for (int s = 0; s < kSlices; ++s)
FATHOM_UNROLL
      for (int q = 0; q < kQuads; ++q) {
        const device::Float4 v = partials.load(quads + quad_index(m, first_slice + s, 4 * half + first_quad + q, lane));
        sum[s][q][0] += w * v.x, sum[s][q][1] += w * v.y, sum[s][q][2] += w * v.z, sum[s][q][3] += w * v.w;
      }
  }
  uint32_t word[kSlices][kQuads][2];
  float most = 0;
FATHOM_UNROLL
  for (int s = 0; s < kSlices; ++s)
FATHOM_UNROLL
    for (int q = 0; q < kQuads; ++q)
FATHOM_UNROLL
      for (int k = 0; k < 2; ++k) {
        const float a = sum[s][q][2 * k], b = sum[s][q][2 * k + 1];
        const bool rotate = first_slice + s == kRopeGroup && p.position;
        // The RoPE slice is never fp8, so its pairs are 4 * (column tile) + t.
        word[s][q][k] = rotate ? finish_pair(a, b, rotation(p, token, 4 * (2 * (first_quad + q) + k) + t))
                               : finish_pair(a, b);
        most = largest_channel(word[s][q][k], most);
      }
  e8m0 scale{127};
  if constexpr (kSlices == 2) {
    const float other = device::shuffle_xor(most, 1);
    most = other > most ? other : most;
    const float third = device::shuffle_xor(most, 2);
    scale = e4m3_scale(third > most ? third : most);
  }
  if (head >= p.heads) return;
  const OutputRow row(p, token, head);
FATHOM_UNROLL
  for (int s = 0; s < kSlices; ++s)
FATHOM_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const int slice = first_slice + s;
      const bool fp8 = slice_is_fp8(G::kFormat, slice);
      const int a = slice * kGroup + first_pair(fp8, first_quad + q, t);
      const int b = slice * kGroup + second_pair(fp8, first_quad + q, t);
      row.store_pair(a, word[s][q][0]);
      row.store_pair(b, word[s][q][1]);
      if constexpr (kSlices == 2) {
        row.store_codes(a, word[s][q][0], reciprocal(scale));
        row.store_codes(b, word[s][q][1], reciprocal(scale));
      }
    }
  if constexpr (kSlices == 2)
    if (t == 0) row.scale[first_slice / 2] = scale.bits;
}

/// Part `part` of `parts` of the unit's final sum.
template <typename G, bool kCluster>
FATHOM_DEVICE void combine_part(const Partials<G, kCluster>& partials, int token, int first_head, int blocks,
                                const float* weight, int part, int parts) {
  const int warp = device::thread_index() / 32;
  if (partials.p.codes) {  // whole groups of 128 channels, for their scale
    for (int item = part * kWarps + warp; item < G::kMTiles * 8; item += parts * kWarps)
      combine_item<G, kCluster, 2, 4>(partials, token, first_head, blocks, weight, item / 8, item / 4 % 2, item % 4 * 2,
                                      0);
  } else {
    for (int item = part * kWarps + warp; item < G::kMTiles * kWarps * 8; item += parts * kWarps)
      combine_item<G, kCluster, 1, 1>(partials, token, first_head, blocks, weight, item / 64, item / 4 % 2, item / 8 % 8,
                                      item % 4);
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
    if (launches(device::load_acquire(word)) != launches(before)) {
      device::fence();
      return mine;
    }
  if (launches(device::atomic_or(word, mine)) == launches(before)) return 0;
  device::atomic_and(word, ~static_cast<uint64_t>(mine));  // complete after all: nobody else saw the bit
  device::fence();
  return mine;
}

}  // namespace fathom::ops::sparse_decode
