// What kernels that end a half (end_kernel.cuh) get of it.
#pragma once

#include "ops/residual_mix/half_end.h"

namespace fathom::ops::mix {

struct End {
  bf16* streams = nullptr;  // null: no half ends
  const float *post = nullptr, *comb = nullptr, *fn = nullptr;
  float* sums = nullptr;
  int64_t token_stride = 0, stream_stride = 0, post_stride = 0, comb_stride = 0, fn_stride = 0;  // elements
  int32_t channels = 0;
};

/// Bytes of shared memory for kEndTokens tokens: fn; streams, comb and post; y.
inline constexpr int kEndFn = kMixes * kStreams * kSumChannels * 4;
inline constexpr int kEndStreams = kStreams * kSumChannels * 2, kEndComb = kStreams * kStreams * 4;  // of a token
inline constexpr int kEndPost = kStreams * 4, kEndY = kSumChannels * 4;
inline constexpr int kEndBytes = kEndFn + kEndTokens * (kEndStreams + kEndComb + kEndPost + kEndY);

/// With what the beginning may lie behind the last multiple of 16 bytes.
inline constexpr int kEndRoom = kEndBytes + 15;

/// Whether `tokens` rows of `channels` channels can end there. Copies have 16 bytes.
inline bool end_fits(const HalfEnd& e, int64_t tokens, int64_t channels) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return tokens <= kEndTokens && channels % kSumChannels == 0 && e.streams.size[0] == tokens &&
         e.streams.size[1] == kStreams && e.streams.size[2] == channels && e.streams.stride[0] % 8 == 0 &&
         e.streams.stride[1] % 8 == 0 && e.post.stride[0] % 4 == 0 && e.comb.stride[0] % 4 == 0 &&
         e.comb.stride[1] == kStreams && e.fn.size[0] == kMixes && e.fn.stride[0] % 4 == 0 && aligned(e.streams.data) &&
         aligned(e.post.data) && aligned(e.comb.data) && aligned(e.fn.data) &&
         e.sums.size[1] == channels / kSumChannels && e.sums.size[2] == kSumPitch &&
         e.sums.stride[0] == e.sums.size[1] * kSumPitch && e.sums.stride[1] == kSumPitch;
}

inline End pack_end(const HalfEnd& e) {
  End to;
  to.streams = e.streams.data, to.post = e.post.data, to.comb = e.comb.data, to.fn = e.fn.data, to.sums = e.sums.data;
  to.token_stride = e.streams.stride[0], to.stream_stride = e.streams.stride[1];
  to.post_stride = e.post.stride[0], to.comb_stride = e.comb.stride[0], to.fn_stride = e.fn.stride[0];
  to.channels = static_cast<int32_t>(e.streams.size[2]);
  return to;
}

}  // namespace fathom::ops::mix
