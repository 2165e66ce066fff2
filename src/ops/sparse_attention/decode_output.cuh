// The epilogue: normalised fp32 output -> bf16, inverse RoPE, optional e4m3 codes, stores.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_compute.cuh"

namespace fathom::ops::sparse_decode {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// cos and sin of one RoPE pair.
struct Rotation {
  float cosine, sine;
};

/// What a rotation is computed from: asked for early, since both may lie in memory that nobody has touched for long.
struct Angle {
  int position = 0;
  float frequency = 0;

  FATHOM_DEVICE static Angle load(const Params& p, int token, int pair) {
    return {p.position[token], p.rope_freq[pair]};
  }
};

/// One warp computes the token's 32 rotations into shared memory. The angle is the fp32 product, as in the reference;
/// its reduction to one turn is done in fp64, so any position is exact to fp32.
template <typename G>
FATHOM_DEVICE void prepare_rotation(const Shared<G>& shared, Angle from, int place) {
  const float angle = static_cast<float>(from.position) * from.frequency;
  const double turns = static_cast<double>(angle) * 0.15915494309189535;
  const float part = static_cast<float>(turns - rint(turns));
  Rotation r;
  device::sincos_pi(2 * part, &r.sine, &r.cosine);
  shared.rotations()[place] = r;
}
template <typename G>
FATHOM_DEVICE void prepare_rotations(const Shared<G>& shared, const Params& p, int token, int pair, int first = 0) {
  prepare_rotation(shared, Angle::load(p, token, pair), first + pair);
}
/// The rotations of a head's token; any for a head that does not exist.
template <typename G>
FATHOM_DEVICE const Rotation* rotations_of(const Shared<G>& shared, const Params& p, int head) {
  if (!kTakesRequests<G> || head >= p.heads) return shared.rotations();
  return shared.rotations() + head / p.each_heads * 32;
}

FATHOM_DEVICE float low_channel(uint32_t word) {
  return std::bit_cast<float>(word << 16);
}
FATHOM_DEVICE float high_channel(uint32_t word) {
  return std::bit_cast<float>(word & 0xFFFF0000u);
}

/// A rounded pair turned back by the query's RoPE and rounded again.
FATHOM_DEVICE uint32_t turn_back(uint32_t word, Rotation r) {
  const float x = low_channel(word), y = high_channel(word);
  return device::pack_bf16x2(x * r.cosine + y * r.sine, y * r.cosine - x * r.sine);
}

FATHOM_DEVICE float largest_channel(uint32_t word, float so_far) {
  const float a = fabsf(low_channel(word)), b = fabsf(high_channel(word));
  const float most = a > b ? a : b;
  return most > so_far ? most : so_far;
}

FATHOM_DEVICE uint16_t pair_codes(uint32_t word, float inverse_scale) {
  const uint32_t low = to_e4m3(low_channel(word) * inverse_scale).bits;
  return static_cast<uint16_t>(low | static_cast<uint32_t>(to_e4m3(high_channel(word) * inverse_scale).bits) << 8);
}

/// Quad (half, j) of an m-tile out of the accumulators of a product with V.
template <bool kFp8>
FATHOM_DEVICE void take_quad(const float (&sum)[8][4], int half, int j, float (&v)[4]) {
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k)
    v[k] = kFp8 ? sum[4 * (j & 1) + k][2 * half + (j >> 1)] : sum[2 * j + (k >> 1)][2 * half + (k & 1)];
}

/// From a head's reference and sum, in powers of two like its sink: what its output is to be multiplied with, and ln of
/// the sum without the sink.
FATHOM_DEVICE float head_factor(float sink, float reference, float sum) {
  if (reference == -__builtin_huge_valf()) return 0;
  return device::reciprocal_approx(sum + device::exp2_fast(sink - reference));
}
FATHOM_DEVICE float head_lse(float reference, float sum) {
  if (reference == -__builtin_huge_valf()) return reference;
  return (reference + device::log2_exact(sum)) * kLn2;
}
/// Asks for the block's sinks, so that the end of the work finds them without waiting for memory. Part of the thread's
/// next group of copies.
template <typename G>
FATHOM_DEVICE void ask_for_sinks(const Shared<G>& shared, const Params& p, int first_head) {
  const int local = device::thread_index();
  if (!p.sink || local >= G::kHeads) return;
  int head = first_head + local;
  const bool present = head < p.heads;
  if (kTakesRequests<G>) head %= p.each_heads;
  device::copy_async_4(shared.sinks() + local, present ? p.sink + head : p.sink, present);
}
template <typename G>
FATHOM_DEVICE float sink_of(const Shared<G>& shared, const Params& p, int local) {
  return p.sink ? shared.sinks()[local] * kLog2E : -__builtin_huge_valf();
}

/// Rounded rows in shared memory before the last step: [rows][512] bf16, padded against bank conflicts.
inline constexpr int kRowBytes = kHeadDim * 2 + 16;

/// Last step for 8 neighbouring channels of a lane: inverse RoPE, stores, codes. The 16 lanes that hold 128
/// neighbouring channels of a head must come together; `real` says whether the head exists.
template <typename G>
FATHOM_DEVICE void finish_channels(const Shared<G>& shared, const Params& p, int token, int head, int channel,
                                   bool real, uint32_t (&word)[4]) {
  if (p.position && channel >= kNopeDim) {
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i)
      word[i] = turn_back(word[i], rotations_of(shared, p, head)[(channel - kNopeDim) / 2 + i]);
  }
  if (p.out && real) {
    device::Float4 v;
    __builtin_memcpy(&v, word, sizeof(v));
    *reinterpret_cast<device::Float4*>(p.out + token * p.out_token_stride + head * p.out_head_stride + channel) = v;
  }
  if (!p.codes) return;
  float most = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) most = largest_channel(word[i], most);
  FATHOM_UNROLL
  for (int mask = 1; mask < 16; mask *= 2) {
    const float other = device::shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  if (!real) return;
  const e8m0 scale = e4m3_scale(most);
  uint64_t codes = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) codes |= static_cast<uint64_t>(pair_codes(word[i], reciprocal(scale))) << 16 * i;
  *reinterpret_cast<uint64_t*>(p.codes + token * p.codes_token_stride + head * p.codes_head_stride + channel) = codes;
  if (channel % 128 == 0)
    p.code_scale[token * p.code_scale_token_stride + head * p.code_scale_head_stride + channel / 128] = scale.bits;
}

/// Rounds this warp's channels of all heads into rows of shared memory.
template <typename G, bool kFp8>
FATHOM_DEVICE void round_rows(const Shared<G>& shared, const Params& p, const Output<G>& output) {
  const float* state = shared.state();
  std::byte* rows = shared.base;
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32, g = lane / 4, t = lane % 4;
  const float unit = power_of_two(output.unit - 127 - G::kProbabilityExponent);
  FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m) FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int local = 16 * m + 8 * half + g;
    const float factor = head_factor(sink_of(shared, p, local), state[2 * local], state[2 * local + 1]) * unit;
    uint32_t word[8];
    FATHOM_UNROLL
    for (int j = 0; j < 4; ++j) {
      float v[4];
      take_quad<kFp8>(output.sum[m], half, j, v);
      word[2 * j] = device::pack_bf16x2(v[0] * factor, v[1] * factor);
      word[2 * j + 1] = device::pack_bf16x2(v[2] * factor, v[3] * factor);
    }
    std::byte* row = rows + local * kRowBytes + warp * kGroup * 2;
    if constexpr (kFp8) {  // 16 neighbouring channels
      device::Float4 v[2];
      __builtin_memcpy(v, word, sizeof(v));
      auto* to = reinterpret_cast<device::Float4*>(row + 32 * t);
      to[0] = v[0], to[1] = v[1];
    } else {
      FATHOM_UNROLL
      for (int j = 0; j < 4; ++j) {
        *reinterpret_cast<uint32_t*>(row + 2 * first_pair(false, j, t)) = word[2 * j];
        *reinterpret_cast<uint32_t*>(row + 2 * second_pair(false, j, t)) = word[2 * j + 1];
      }
    }
  }
}

/// Last step for rows that are rounded already, and lse from the states; the first 8 warps of the block.
template <typename G>
FATHOM_DEVICE void finish_rows(const Shared<G>& shared, const Params& p, int token, int first_head) {
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  const float* state = shared.state();
  if (p.lse && device::thread_index() < G::kHeads) {
    const int local = device::thread_index(), head = first_head + local;
    if (head < p.heads) p.lse[token * p.lse_token_stride + head] = head_lse(state[2 * local], state[2 * local + 1]);
  }
  FATHOM_UNROLL_1
  for (int item = warp; item < 2 * G::kHeads; item += kWarps) {  // half a row a warp
    const int local = item / 2, head = first_head + local, channel = item % 2 * 256 + lane * 8;
    if (head >= p.heads) break;
    uint32_t word[4];
    __builtin_memcpy(word, shared.base + local * kRowBytes + channel * 2, sizeof(word));
    finish_channels<G>(shared, p, token, head, channel, true, word);
  }
}

/// The whole output of a block that had all rows of its token, from the states in shared memory.
template <typename G>
FATHOM_DEVICE void store_direct(const Shared<G>& shared, const Params& p, int token, int first_head,
                                const Output<G>& output) {
  if (slice_is_fp8(G::kFormat, device::thread_index() / 32))
    round_rows<G, true>(shared, p, output);
  else
    round_rows<G, false>(shared, p, output);
  device::sync_block();
  finish_rows<G>(shared, p, token, first_head);
}

}  // namespace fathom::ops::sparse_decode
