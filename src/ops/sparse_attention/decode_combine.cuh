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

/// Place of a lane's quad: quads 2 i and 2 i + 1 of a lane are neighbours.
FATHOM_DEVICE int quad_index(int m, int slice, int quad, int lane) {
  return (((m * kWarps + slice) * 4 + quad / 2) * 32 + lane) * 2 + quad % 2;
}

/// Four floats as four fp16.
FATHOM_DEVICE uint64_t pack_quad(const float (&v)[4]) {
  return device::pack_f16x2(v[0], v[1]) | static_cast<uint64_t>(device::pack_f16x2(v[2], v[3])) << 32;
}
FATHOM_DEVICE void unpack_quad(uint64_t quad, float (&v)[4]) {
  device::unpack_f16x2(static_cast<uint32_t>(quad), &v[0], &v[1]);
  device::unpack_f16x2(static_cast<uint32_t>(quad >> 32), &v[2], &v[3]);
}

FATHOM_DEVICE void load_quads(const uint64_t* from, uint64_t (&quads)[1]) {
  quads[0] = device::load_l2(from);
}
FATHOM_DEVICE void load_quads(const uint64_t* from, uint64_t (&quads)[2]) {
  const device::Float4 v = device::load_l2(reinterpret_cast<const device::Float4*>(from));
  __builtin_memcpy(quads, &v, sizeof(v));
}
FATHOM_DEVICE void load_quads(const uint64_t* from, uint64_t (&quads)[4]) {
  const device::Float4 a = device::load_l2(reinterpret_cast<const device::Float4*>(from));
  const device::Float4 b = device::load_l2(reinterpret_cast<const device::Float4*>(from + 64));
  __builtin_memcpy(quads, &a, sizeof(a));
  __builtin_memcpy(quads + 2, &b, sizeof(b));
}
FATHOM_DEVICE void store_two(uint64_t* to, uint64_t a, uint64_t b) {
  const uint64_t both[2] = {a, b};
  device::Float4 v;
  __builtin_memcpy(&v, both, sizeof(v));
  *reinterpret_cast<device::Float4*>(to) = v;
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
    const float sum = state[2 * (16 * m + 8 * half + g) + 1],
                inverse = sum > 0 ? device::reciprocal_approx(sum * (1 << G::kProbabilityExponent)) : 0.0f;
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
  uint64_t* to = partials.quads(split) + quad_index(0, warp, 0, lane);
  FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m) FATHOM_UNROLL
  for (int quad = 0; quad < 8; quad += 2) {
    float a[4], b[4];
    take_quad<kFp8>(output.sum[m], quad / 4, quad % 4, a);
    take_quad<kFp8>(output.sum[m], quad / 4, quad % 4 + 1, b);
    store_two(to + quad_index(m, 0, quad, 0), pack_quad(a), pack_quad(b));
  }
  if (lane < G::kMTiles) *partials.factor(split, lane, warp) = factor;
}

FATHOM_DEVICE float largest_of_head(float v) {
  const float a = device::shuffle_xor(v, 1);
  v = a > v ? a : v;
  const float b = device::shuffle_xor(v, 2);
  return b > v ? b : v;
}

/// States of a head's splits and what becomes of them: the four lanes of a head hold splits t, t+4, t+8 ...
template <int kCount>
struct SplitStates {
  float reference[kCount], sum[kCount];

  float most, total;  // over all splits, after weigh()

  /// Replaces each sum by the weight of that split's (divided) output.
  FATHOM_DEVICE void weigh(float sink) {
    most = reference[0];
    FATHOM_UNROLL
    for (int k = 1; k < kCount; ++k) most = reference[k] > most ? reference[k] : most;
    most = largest_of_head(most);
    const float against = most == -__builtin_huge_valf() ? 0.0f : most;
    total = 0;
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) {
      sum[k] *= device::exp2_fast(reference[k] - against);
      total += sum[k];
    }
    total += device::shuffle_xor(total, 1);
    total += device::shuffle_xor(total, 2);
    const float factor = head_factor(sink, most, total);
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) sum[k] *= factor;
  }
};

/// Tables in shared memory of the final sum.
template <typename G>
FATHOM_DEVICE float* weights_of(const Shared<G>& shared, int split) {
  return reinterpret_cast<float*>(shared.base + G::kWeightsAt) + split * G::kHeads;
}
template <typename G>
FATHOM_DEVICE float* factors_of(const Shared<G>& shared, int split) {
  return reinterpret_cast<float*>(shared.base + G::kFactorsAt) + split * (G::kMTiles * kWarps);
}

/// How a warp sums up: kPair quads together, kAhead splits in flight.
template <typename G>
struct Summing {
  static constexpr int kPair = G::kMTiles, kAhead = G::kSumAhead;
};

/// Up to how many splits an instance prepares the sum by shorter code of its own.
template <typename G>
inline constexpr int kFewSplits = kMostSplits;
template <typename G>
requires requires {
  G::kFewSplits;
}
inline constexpr int kFewSplits<G> = G::kFewSplits;

/// Weights of all heads' splits, of which there are at most kMost, and the slices' factors into shared memory, by the
/// block's first kThreads threads; zeros beyond the last split. Writes lse when asked to.
template <int kMost, typename G>
FATHOM_DEVICE void prepare_sum(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head,
                               int blocks, bool write_lse) {
  constexpr int kCount = kMost / 4, kFactors = G::kMTiles * kWarps;
  constexpr int kFactorsEach = (kMost * kFactors + kThreads - 1) / kThreads;
  const Params& p = partials.p;
  const int thread = device::thread_index(), local = thread / 4, t = thread % 4;
  float factor[kFactorsEach];
  FATHOM_UNROLL
  for (int k = 0; k < kFactorsEach; ++k) {
    const int i = k * kThreads + thread, split = i / kFactors;
    factor[k] = split < blocks ? device::load_l2(partials.factor(split, 0, 0) + i % kFactors) : 0.0f;
  }
  if (local < G::kHeads) {
    SplitStates<kCount> states;
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) {
      states.reference[k] = -__builtin_huge_valf(), states.sum[k] = 0;
      if (4 * k + t < blocks)
        device::load_l2_pair(partials.state(4 * k + t) + 2 * local, &states.reference[k], &states.sum[k]);
    }
    states.weigh(sink_of(shared, p, local));
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k) weights_of(shared, 4 * k + t)[local] = states.sum[k];
    if (write_lse && p.lse && t == 0 && first_head + local < p.heads)
      p.lse[token * p.lse_token_stride + first_head + local] = head_lse(states.most, states.total);
  }
  FATHOM_UNROLL
  for (int k = 0; k < kFactorsEach; ++k) factors_of(shared, 0)[k * kThreads + thread] = factor[k];
  device::sync_first<kThreads>();
}

/// Quads of one item on their way from L2, of kAhead splits: in registers, or in shared memory, each lane's for itself,
/// so that the sum is a short loop. (Written out, it is code that runs once and waits for its instructions.)
template <typename G>
struct Ahead {
  static constexpr int kPair = Summing<G>::kPair, kAhead = Summing<G>::kAhead;
  static constexpr bool kInShared = kSumsFromShared<G>;
  uint64_t quad[kInShared ? 1 : kAhead][kPair];

  /// Where 16-byte piece `piece` of the lane's quads of the `i`-th split lies.
  FATHOM_DEVICE static device::Float4* incoming(const Shared<G>& shared, int i, int piece) {
    const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
    return reinterpret_cast<device::Float4*>(shared.base + G::kIncomingAt) +
           ((warp * kAhead + i) * (kPair / 2) + piece) * 32 + lane;
  }

  FATHOM_DEVICE void load(const Shared<G>& shared, const Partials<G>& partials, int blocks, int first, int at) {
    if constexpr (kInShared) {
      const uint64_t* from = partials.quads(first) + at;
      FATHOM_UNROLL_1
      for (int i = 0; i < kAhead && first + i < blocks; ++i, from += G::kQuads) FATHOM_UNROLL
      for (int piece = 0; piece < kPair / 2; ++piece)
        device::copy_async_16(incoming(shared, i, piece), from + 64 * piece, true);
      device::copy_async_commit();
    } else {
      const uint64_t* from = partials.quads(0) + at;
      FATHOM_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int split = first + i < blocks ? first + i : blocks - 1;  // beyond the last: weight 0
        load_quads(from + split * G::kQuads, quad[i]);
      }
    }
  }
};

template <int kPair>
FATHOM_DEVICE void add_quads(float w, const uint64_t (&quad)[kPair], float (&sum)[kPair][4]) {
  FATHOM_UNROLL
  for (int q = 0; q < kPair; ++q) {
    float v[4];
    unpack_quad(quad[q], v);
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) sum[q][k] += w * v[k];
  }
}

/// The weighted sums over the splits of kPair neighbouring quads of a slice, rounded: two pairs of channels each, of
/// head 16 m + 8 (quad / 4) + g. The quads of the first splits are on their way.
template <typename G>
FATHOM_DEVICE void sum_quads(const Shared<G>& shared, const Partials<G>& partials, int blocks, int m, int slice,
                             int quad, Ahead<G>& ahead, uint32_t (&word)[Summing<G>::kPair][2]) {
  constexpr int kPair = Summing<G>::kPair, kAhead = Summing<G>::kAhead;
  const int lane = device::thread_index() % 32, local = 16 * m + 8 * (quad / 4) + lane / 4;
  const float* weights = weights_of(shared, 0) + local;
  const float* factors = factors_of(shared, 0) + m * kWarps + slice;
  const auto weight = [&](int split) { return weights[split * G::kHeads] * factors[split * (G::kMTiles * kWarps)]; };
  float sum[kPair][4] = {};
  FATHOM_UNROLL_1
  for (int first = 0; first < blocks; first += kAhead) {
    if (first > 0) ahead.load(shared, partials, blocks, first, quad_index(m, slice, quad, lane));
    if constexpr (Ahead<G>::kInShared) {
      device::copy_async_wait<0>();
      FATHOM_UNROLL_1
      for (int i = 0; i < kAhead && first + i < blocks; ++i) {
        uint64_t now[kPair];
        FATHOM_UNROLL
        for (int piece = 0; piece < kPair / 2; ++piece) {
          const device::Float4 v = *Ahead<G>::incoming(shared, i, piece);
          __builtin_memcpy(now + 2 * piece, &v, sizeof(v));
        }
        add_quads(weight(first + i), now, sum);
      }
    } else {
      FATHOM_UNROLL
      for (int i = 0; i < kAhead; ++i) add_quads(weight(first + i), ahead.quad[i], sum);
    }
  }
  FATHOM_UNROLL
  for (int q = 0; q < kPair; ++q) {
    word[q][0] = device::pack_bf16x2(sum[q][0], sum[q][1]);
    word[q][1] = device::pack_bf16x2(sum[q][2], sum[q][3]);
  }
}

/// Stores the channels of kPair neighbouring quads of a slice, turned back by RoPE where that applies.
template <typename G, int kPair>
FATHOM_DEVICE void store_sums(const Shared<G>& shared, const Params& p, int token, int head, int slice, int quad,
                              uint32_t (&word)[kPair][2]) {
  const int t = device::thread_index() % 4;
  uint16_t* out = p.out + token * p.out_token_stride + head * p.out_head_stride + slice * kGroup;
  if constexpr (kPermuted<G>) {  // 8 neighbouring channels of each 32
    uint64_t both[kPair];
    if (slice == kRopeGroup && p.position) {
      FATHOM_UNROLL
      for (int q = 0; q < kPair; ++q) {
        const int first = first_pair_of<G>(slice, quad % 4 + q, t) / 2;
        word[q][0] = turn_back(word[q][0], shared.rotations()[first]);
        word[q][1] = turn_back(word[q][1], shared.rotations()[first + 1]);
      }
    }
    __builtin_memcpy(both, word, sizeof(both));
    FATHOM_UNROLL
    for (int q = 0; q < kPair; q += 2)
      store_two(reinterpret_cast<uint64_t*>(out + first_pair_of<G>(slice, quad % 4 + q, t)), both[q], both[q + 1]);
    return;
  }
  if (slice_is_fp8(G::kFormat, slice)) {  // 4 kPair neighbouring channels
    uint64_t both[kPair];
    __builtin_memcpy(both, word, sizeof(both));
    auto* to = reinterpret_cast<uint64_t*>(out + first_pair(true, quad % 4, t));
    if constexpr (kPair == 1) {
      *to = both[0];
    } else {
      FATHOM_UNROLL
      for (int q = 0; q < kPair; q += 2) store_two(to + q, both[q], both[q + 1]);
    }
    return;
  }
  FATHOM_UNROLL
  for (int q = 0; q < kPair; ++q) {
    const int a = first_pair(false, quad % 4 + q, t), b = second_pair(false, quad % 4 + q, t);
    if (slice == kRopeGroup && p.position) {
      word[q][0] = turn_back(word[q][0], rotations_of(shared, p, head)[a / 2]);
      word[q][1] = turn_back(word[q][1], rotations_of(shared, p, head)[b / 2]);
    }
    *reinterpret_cast<uint32_t*>(out + a) = word[q][0];
    *reinterpret_cast<uint32_t*>(out + b) = word[q][1];
  }
}

/// 128 channels of 8 heads by one warp, with codes, by way of rows in shared memory.
template <typename G>
FATHOM_DEVICE void combine_group(const Shared<G>& shared, const Partials<G>& partials, int token, int first_head,
                                 int blocks, int m, int half, int slice, std::byte* rows) {
  constexpr int kPitch = 256 + 16, kPair = Summing<G>::kPair;
  const int lane = device::thread_index() % 32, g = lane / 4, t = lane % 4;
  FATHOM_UNROLL_1
  for (int i = 0; i < 8; i += kPair) {
    uint32_t word[kPair][2];
    const int s = slice + i / 4;
    Ahead<G> ahead;
    ahead.load(shared, partials, blocks, 0, quad_index(m, s, 4 * half + i % 4, lane));
    sum_quads<G>(shared, partials, blocks, m, s, 4 * half + i % 4, ahead, word);
    std::byte* row = rows + g * kPitch + i / 4 * 128;
    FATHOM_UNROLL
    for (int q = 0; q < kPair; ++q) {
      *reinterpret_cast<uint32_t*>(row + 2 * first_pair_of<G>(s, i % 4 + q, t)) = word[q][0];
      *reinterpret_cast<uint32_t*>(row + 2 * second_pair_of<G>(s, i % 4 + q, t)) = word[q][1];
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
  constexpr int kPair = Summing<G>::kPair, kItems = G::kMTiles * 64 / kPair;
  const Params& p = partials.p;
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32, first = part * kWarps + warp;
  const auto place_of = [&](int item) { return quad_index(0, 0, item * kPair, lane); };  // quads of m and slice follow
  Ahead<G> ahead;
  if (!p.codes && first < kItems)
    ahead.load(shared, partials, blocks, 0, place_of(first));  // before the tables are ready
  if (kFewSplits<G> < kMostSplits && blocks <= kFewSplits<G>)
    prepare_sum<kFewSplits<G>>(shared, partials, token, first_head, blocks, part == 0);
  else
    prepare_sum<kMostSplits>(shared, partials, token, first_head, blocks, part == 0);
  if (p.codes) {  // whole groups of 128 channels, for their scale
    std::byte* rows = shared.base + G::kGroupRowsAt + warp * 8 * (256 + 16);
    FATHOM_UNROLL_1
    for (int item = first; item < G::kMTiles * 8; item += parts * kWarps)
      combine_group<G>(shared, partials, token, first_head, blocks, item / 8, item / 4 % 2, item % 4 * 2, rows);
  } else {
    FATHOM_UNROLL_1
    for (int item = first; item < kItems; item += parts * kWarps) {
      const int quad = item * kPair, m = quad / 64, slice = quad / 8 % 8;
      if (item != first) ahead.load(shared, partials, blocks, 0, place_of(item));
      uint32_t word[kPair][2];
      sum_quads<G>(shared, partials, blocks, m, slice, quad % 8, ahead, word);
      const int head = first_head + 16 * m + 8 * (quad / 4 % 2) + lane / 4;
      if (head < p.heads) store_sums<G>(shared, p, token, head, slice, quad % 8, word);
    }
  }
  device::sync_first<kThreads>();  // the tables may be written again
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
