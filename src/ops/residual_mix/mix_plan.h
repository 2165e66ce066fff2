// What the stream mix kernels are launched with (mix_kernel.cuh), for residual_mix and head.
#pragma once

#include "ops/residual_mix/residual_mix.h"

namespace fathom::ops::mix {

inline constexpr int kSliceChannels = 32;
inline constexpr int kPartialWarps = 4;
/// Up to so many tokens go by blocks of one token, whose warps divide the mixes.
inline constexpr int kFewTokens = 4, kFewWarps = 4;
/// Tokens of a block: one a warp while there are few, more where blocks are many and each reads fn.
constexpr int block_tokens(int64_t tokens) {
  return tokens <= 16 ? kPartialWarps : 4 * kPartialWarps;
}
inline constexpr int kFinishThreads = 512, kFinishWarps = kFinishThreads / 32;
inline constexpr int kMostChannels = 2 * 8 * kFinishThreads;  // two pieces of 8 channels a thread
inline constexpr int kGates = 4;                              // mixes of the head

/// Values of one slice's partial sums: kMixes mixes, then the sum of squares.
template <int kMixes>
inline constexpr int kPitch = kMixes == kGates ? 8 : 32;

struct Params {
  View<bf16, 3> streams;        // [T, 4, d]
  View<const int32_t, 1> rows;  // head: which tokens; data == null: all
  int32_t first = 0, tokens = 0, slices = 0, block_tokens = 0;
  // partial
  View<const bf16, 2> y;
  const float *post = nullptr, *comb = nullptr;  // [T][4], [T][16], 16-byte aligned
  int64_t post_stride = 0, comb_stride = 0;
  View<const float, 2> fn;
  float* partial = nullptr;  // [tokens][slices][kPitch]
  // finish
  View<const float, 1> scale, base;
  View<const bf16, 1> norm;
  int32_t iterations = 0;
  float hc_eps = 0, rms_eps = 0;
  View<float, 2> next_post;
  View<float, 3> next_comb;
  View<bf16, 2> mixed;  // head: before the norm
  View<bf16, 2> x;
  View<e4m3, 2> codes;
  View<e8m0, 2> code_scale;
};

inline Params params(const ResidualMixArgs& a) {
  Params p;
  p.streams = a.streams;
  p.y = a.y, p.post = a.post.data, p.comb = a.comb.data;
  p.post_stride = a.post.stride[0], p.comb_stride = a.comb.stride[0];
  p.fn = a.fn, p.scale = a.scale, p.base = a.base, p.norm = a.norm;
  p.iterations = a.sinkhorn_iterations, p.hc_eps = a.hc_eps, p.rms_eps = a.rms_eps;
  p.next_post = a.next_post, p.next_comb = a.next_comb;
  p.x = a.x, p.codes = a.x_codes, p.code_scale = a.x_scale;
  return p;
}

/// Tokens that are mixed by one pair of launches; more come in several.
inline constexpr int64_t kPassTokens = 512;

/// Bytes of partial sums for `tokens` rows of `channels` channels; mixes is 24 or 4.
size_t partial_bytes(int64_t tokens, int64_t channels, int mixes);

/// Runs the partial and, when fn is given, the finishing launches for tokens [0, tokens). `op` names it in errors.
template <int kMixes>
void run(const char* op, Params p, int64_t tokens, const Launch& l);

}  // namespace fathom::ops::mix
