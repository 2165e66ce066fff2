// The partial sums of the stream mix for many tokens, by tensor cores (mma.sync, bf16).
//
// grid (slices of 128 channels, groups of 16 tokens). A warp has 16 channels of all four
// streams for 16 tokens: X' comes into the registers of the factor on the left as it is made, and the 24 rows of fn are
// there as three terms of bf16 each, whose products with X' are exact: fn to 24 bits. Sums of the block's warps are
// added in their order, so a slice is four times as wide as that of partial_block(), and finish_block() reads a
// quarter. Streams, post, comb and fn are read, fn is split and the streams' sums are made before the previous kernel
// has ended. A token's bits do not depend on the other tokens of the batch, but they are not those of partial_block().
#pragma once

#include "ops/residual_mix/mix_kernel.cuh"

namespace fathom::ops::mix {

inline constexpr int kManyTokens = 16, kManyWarps = 8, kManyChannels = 16 * kManyWarps, kManyTiles = kMixes / 8;
/// From so many tokens on.
inline constexpr int kLeastMany = 12;
/// Sums of a warp in shared memory: [16][kManyPitch], a pitch that keeps pairs of 8 rows in different banks.
inline constexpr int kManyPitch = 40;
inline constexpr int kManyFloats = kManyWarps * kManyTokens * kManyPitch;

/// fn of 4 channels and 8 mixes a stream, in three terms; a term has the two registers of the factor on the right.
struct SplitFn {
  uint32_t term[3][kManyTiles][kStreams][2];
};
/// What is left of two values behind their bf16 halves.
FATHOM_DEVICE uint32_t take_term(float& low, float& high) {
  const uint32_t pair = device::pack_bf16x2(low, high);
  low -= device::low_half(pair), high -= device::high_half(pair);
  return pair;
}
FATHOM_DEVICE SplitFn load_fn(const Params& p, int channel) {
  const int row = device::lane_index() / 4;
  device::Float4 v[kManyTiles][kStreams];
  FATHOM_UNROLL
  for (int n = 0; n < kManyTiles; ++n) FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k)
    v[n][k] = *reinterpret_cast<const device::Float4*>(p.fn.data + (8 * n + row) * p.fn.stride[0] +
                                                       k * p.streams.size[2] + channel);
  SplitFn fn;
  FATHOM_UNROLL
  for (int n = 0; n < kManyTiles; ++n) FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) FATHOM_UNROLL
  for (int i = 0; i < 3; ++i) {
    fn.term[i][n][k][0] = take_term(v[n][k].x, v[n][k].y);
    fn.term[i][n][k][1] = take_term(v[n][k].z, v[n][k].w);
  }
  return fn;
}

/// 4 channels of a token's streams; zeros where the token is none of the batch.
FATHOM_DEVICE void load_streams(const Params& p, int token, bool real, int channel, device::Words2 (&x)[kStreams]) {
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    x[k] = {};
    if (real) x[k] = *reinterpret_cast<const device::Words2*>(&p.streams(token, k, channel));
  }
}
FATHOM_DEVICE device::Words2 load_y(const Params& p, int token, bool real, int channel) {
  return real ? *reinterpret_cast<const device::Words2*>(&p.y(token, channel)) : device::Words2{};
}

/// What a token's streams carry into X', sum_j comb[j][k] X[j] of 4 channels, exact before it is rounded to fp32 like
/// carry(): sums begin at a bias larger than each of them, so that what a product loses is the product less the change.
FATHOM_DEVICE void carry_channels(const Params& p, int token, const device::Words2 (&x)[kStreams],
                                  float (&sum)[kStreams][4]) {
  float factor[kStreams][kStreams], most = 0;
  FATHOM_UNROLL
  for (int j = 0; j < kStreams; ++j) {
    const auto row = *reinterpret_cast<const device::Float4*>(p.comb + token * p.comb_stride + kStreams * j);
    factor[j][0] = row.x, factor[j][1] = row.y, factor[j][2] = row.z, factor[j][3] = row.w;
    most = fmaxf(most, device::largest(factor[j]));
  }
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    float v[kStreams];
    FATHOM_UNROLL
    for (int j = 0; j < kStreams; ++j) {
      const uint32_t word = x[j].word[i / 2];
      v[j] = i % 2 ? device::high_half(word) : device::low_half(word);
    }
    const float bias = 8 * most * device::largest(v);
    FATHOM_UNROLL
    for (int k = 0; k < kStreams; ++k) {
      float high = bias, low = 0;
      FATHOM_UNROLL
      for (int j = 0; j < kStreams; ++j) {
        const float next = fmaf(factor[j][k], v[j], high);
        low += fmaf(factor[j][k], v[j], high - next), high = next;
      }
      sum[k][i] = (high - bias) + low;
    }
  }
}

/// X' of a token's 4 channels, stored where the token is real.
FATHOM_DEVICE void end_channels(const Params& p, int token, bool real, int channel, const float (&sum)[kStreams][4],
                                const device::Float4& post, device::Words2 y, device::Words2 (&x)[kStreams]) {
  const float v[4] = {device::low_half(y.word[0]), device::high_half(y.word[0]), device::low_half(y.word[1]),
                      device::high_half(y.word[1])};
  const float gate[kStreams] = {post.x, post.y, post.z, post.w};
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    float ended[4];
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) ended[i] = device::add(device::multiply(gate[k], v[i]), sum[k][i]);
    x[k] = {device::pack_bf16x2(ended[0], ended[1]), device::pack_bf16x2(ended[2], ended[3])};
    if (real) *reinterpret_cast<device::Words2*>(&p.streams(token, k, channel)) = x[k];
  }
}
FATHOM_DEVICE float squares_of(const device::Words2 (&x)[kStreams]) {
  float sum[2] = {};
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) FATHOM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float low = device::low_half(x[k].word[i]), high = device::high_half(x[k].word[i]);
    sum[0] = fmaf(low, low, sum[0]), sum[1] = fmaf(high, high, sum[1]);
  }
  float s = sum[0] + sum[1];
  s += device::shuffle_xor(s, 1);
  return s + device::shuffle_xor(s, 2);
}

/// The sums of the warp's channels into shared memory.
FATHOM_DEVICE void multiply_fn(const SplitFn& fn, const device::Words2 (&x)[2][kStreams], float* to) {
  const int row = device::lane_index() / 4, column = 2 * (device::lane_index() % 4);
  float sum[2][kManyTiles][4] = {};  // of the first terms, and of the two small ones
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    const uint32_t a[4] = {x[0][k].word[0], x[1][k].word[0], x[0][k].word[1], x[1][k].word[1]};
    FATHOM_UNROLL
    for (int i = 0; i < 3; ++i) FATHOM_UNROLL
    for (int n = 0; n < kManyTiles; ++n) device::mma_bf16(sum[i > 0][n], a, fn.term[i][n][k][0], fn.term[i][n][k][1]);
  }
  FATHOM_UNROLL
  for (int n = 0; n < kManyTiles; ++n) FATHOM_UNROLL
  for (int i = 0; i < 4; ++i)
    to[(row + 8 * (i / 2)) * kManyPitch + 8 * n + column + i % 2] = sum[0][n][i] + sum[1][n][i];
}

/// The sums of the warps, in their order, to the partial sums of the block's tokens.
FATHOM_DEVICE void add_warps(const Params& p, const float* shared) {
  const int value = device::lane_index();
  FATHOM_UNROLL
  for (int row = device::warp_index(); row < kManyTokens; row += kManyWarps) {
    const int local = device::block_y() * kManyTokens + row;
    if (value > kMixes || local >= p.tokens) continue;
    float total = 0;
    FATHOM_UNROLL
    for (int w = 0; w < kManyWarps; ++w) total += shared[(w * kManyTokens + row) * kManyPitch + value];
    p.partial[(int64_t{local} * p.slices + device::block_x()) * kPitch<kMixes> + value] = total;
  }
}

/// d a multiple of kManyChannels; rows of y and fn at multiples of 8 and 16 bytes. `shared`: kManyFloats.
FATHOM_DEVICE void many_partial_block(const Params& p, float* shared) {
  const int lane = device::lane_index(), warp = device::warp_index();
  const int channel = device::block_x() * kManyChannels + 16 * warp + 4 * (lane % 4);
  int token[2];
  bool real[2];
  device::Words2 x[2][kStreams], y[2] = {};
  device::Float4 post[2];
  float carried[2][kStreams][4];
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int local = device::block_y() * kManyTokens + lane / 4 + 8 * r;
    real[r] = local < p.tokens, token[r] = p.first + (real[r] ? local : p.tokens - 1);
    if (!p.y.data) continue;
    load_streams(p, token[r], real[r], channel, x[r]);
    post[r] = *reinterpret_cast<const device::Float4*>(p.post + token[r] * p.post_stride);
  }
  const SplitFn fn = load_fn(p, channel);
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r)
    if (p.y.data) carry_channels(p, token[r], x[r], carried[r]);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r)
    if (p.y.data) y[r] = load_y(p, token[r], real[r], channel);
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r)
    if (p.y.data)
      end_channels(p, token[r], real[r], channel, carried[r], post[r], y[r], x[r]);
    else
      load_streams(p, token[r], real[r], channel, x[r]);
  float* mine = shared + warp * kManyTokens * kManyPitch;
  multiply_fn(fn, x, mine);
  FATHOM_UNROLL
  for (int r = 0; r < 2; ++r) {
    const float squares = squares_of(x[r]);
    if (lane % 4 == 0) mine[(lane / 4 + 8 * r) * kManyPitch + kMixes] = squares;
  }
  device::sync_block();
  add_warps(p, shared);
}

}  // namespace fathom::ops::mix
