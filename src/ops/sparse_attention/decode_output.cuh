// The epilogue: normalised fp32 output -> bf16, inverse RoPE, optional e4m3 codes, stores.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_compute.cuh"

namespace fathom::ops::sparse_decode {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// cos and sin of one RoPE pair.
struct Rotation {
  float cosine = 1, sine = 0;
};

/// The angle is the fp32 product, as in the reference; its reduction to one turn is done in fp64, so any position is
/// exact to fp32.
FATHOM_DEVICE Rotation rotation(const Params& p, int token, int pair) {
  const float angle = static_cast<float>(p.position[token]) * p.rope_freq[pair];
  const double turns = static_cast<double>(angle) * 0.15915494309189535;
  const float part = static_cast<float>(turns - rint(turns));
  Rotation r;
  device::sincos_pi(2 * part, &r.sine, &r.cosine);
  return r;
}

FATHOM_DEVICE float low_channel(uint32_t word) { return std::bit_cast<float>(word << 16); }
FATHOM_DEVICE float high_channel(uint32_t word) { return std::bit_cast<float>(word & 0xFFFF0000u); }

/// Two neighbouring channels rounded to bf16 and packed.
FATHOM_DEVICE uint32_t finish_pair(float a, float b) { return device::pack_bf16x2(a, b); }

/// The same, then turned back by the query's RoPE and rounded again.
FATHOM_DEVICE uint32_t finish_pair(float a, float b, Rotation r) {
  const uint32_t word = device::pack_bf16x2(a, b);
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

/// Where one head's output goes.
struct OutputRow {
  uint16_t* out = nullptr;
  uint8_t* codes = nullptr;
  uint8_t* scale = nullptr;

  FATHOM_DEVICE OutputRow(const Params& p, int token, int head) {
    if (p.out) out = p.out + token * p.out_token_stride + head * p.out_head_stride;
    if (p.codes) {
      codes = p.codes + token * p.codes_token_stride + head * p.codes_head_stride;
      scale = p.code_scale + token * p.code_scale_token_stride + head * p.code_scale_head_stride;
    }
  }
  FATHOM_DEVICE void store_pair(int channel, uint32_t word) const {
    if (out) *reinterpret_cast<uint32_t*>(out + channel) = word;
  }
  FATHOM_DEVICE void store_codes(int channel, uint32_t word, float inverse_scale) const {
    *reinterpret_cast<uint16_t*>(codes + channel) = pair_codes(word, inverse_scale);
  }
};

/// Quad (half, j) of an m-tile out of the accumulators of a product with V.
template <bool kFp8>
FATHOM_DEVICE void take_quad(const float (&sum)[8][4], int half, int j, float (&v)[4]) {
FATHOM_UNROLL
  for (int k = 0; k < 4; ++k)
    v[k] = kFp8 ? sum[4 * (j & 1) + k][2 * half + (j >> 1)] : sum[2 * j + (k >> 1)][2 * half + (k & 1)];
}

/// One of a (head, split)'s weights in the final sum, and ln of the sum without the sink.
struct HeadResult {
  float inverse, lse;
};
FATHOM_DEVICE HeadResult head_result(const Params& p, int head, float reference, float sum) {
  if (reference == -__builtin_huge_valf()) return {0.0f, reference};
  const float sink = p.sink ? device::exp2_fast(p.sink[head] * kLog2E - reference) : 0.0f;
  return {1.0f / (sum + sink), (reference + device::log2_exact(sum)) * kLn2};
}

/// Writes the finished channels of one m-tile's half (head) that this warp holds.
template <bool kFp8>
FATHOM_DEVICE void store_words(const OutputRow& row, int slice, int t, const uint32_t (&word)[8]) {
  if (!row.out) return;
  if constexpr (kFp8) {  // 16 neighbouring channels
    auto* to = reinterpret_cast<device::Float4*>(row.out + slice * kGroup + 16 * t);
    device::Float4 v[2];
    __builtin_memcpy(v, word, sizeof(v));
    to[0] = v[0], to[1] = v[1];
  } else {
FATHOM_UNROLL
    for (int j = 0; j < 4; ++j) {
      row.store_pair(slice * kGroup + first_pair(false, j, t), word[2 * j]);
      row.store_pair(slice * kGroup + second_pair(false, j, t), word[2 * j + 1]);
    }
  }
}

/// The whole output of a block that had all rows of its token. `state` holds (reference, sum) of each head; `largest`
/// is scratch of [heads][8] floats, used when codes are wanted.
template <typename G, bool kFp8>
FATHOM_DEVICE void store_direct(const Params& p, int token, int first_head, const float* state, float* largest,
                                const Output<G>& output) {
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32, g = lane / 4, t = lane % 4;
  const bool rotate = !kFp8 && warp == kRopeGroup && p.position;
  Rotation turn[8];
  if (rotate) {
FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) turn[i] = rotation(p, token, 4 * i + t);
  }
  uint32_t word[G::kMTiles][2][8];
FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m)
FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int local = 16 * m + 8 * half + g, head = first_head + local;
      const bool real = head < p.heads;
      const HeadResult result = real ? head_result(p, head, state[2 * local], state[2 * local + 1]) : HeadResult{0, 0};
      float most = 0;
FATHOM_UNROLL
      for (int j = 0; j < 4; ++j) {
        float v[4];
        take_quad<kFp8>(output.sum[m], half, j, v);
FATHOM_UNROLL
        for (int k = 0; k < 2; ++k) {
          const float a = v[2 * k] * result.inverse, b = v[2 * k + 1] * result.inverse;
          uint32_t& w = word[m][half][2 * j + k];
          w = rotate ? finish_pair(a, b, turn[2 * j + k]) : finish_pair(a, b);
          most = largest_channel(w, most);
        }
      }
      if (real) {
        store_words<kFp8>(OutputRow(p, token, head), warp, t, word[m][half]);
        if (p.lse && warp == 0 && t == 0) p.lse[token * p.lse_token_stride + head] = result.lse;
      }
      if (p.codes) {
        const float other = device::shuffle_xor(most, 1);
        most = other > most ? other : most;
        const float third = device::shuffle_xor(most, 2);
        if (t == 0) largest[local * kWarps + warp] = third > most ? third : most;
      }
    }
  if (!p.codes) return;
  device::sync_block();
FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m)
FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int local = 16 * m + 8 * half + g, head = first_head + local;
      if (head >= p.heads) continue;
      const float a = largest[local * kWarps + warp], b = largest[local * kWarps + (warp ^ 1)];
      const e8m0 scale = e4m3_scale(a > b ? a : b);
      const OutputRow row(p, token, head);
FATHOM_UNROLL
      for (int j = 0; j < 4; ++j) {
        row.store_codes(warp * kGroup + first_pair(kFp8, j, t), word[m][half][2 * j], reciprocal(scale));
        row.store_codes(warp * kGroup + second_pair(kFp8, j, t), word[m][half][2 * j + 1], reciprocal(scale));
      }
      if (t == 0 && warp % 2 == 0) row.scale[warp / 2] = scale.bits;
    }
}

}  // namespace fathom::ops::sparse_decode
