// The end of a half in the block that has computed 32 channels of its y, for few tokens: few_partial_block() without
// the launch.
#pragma once

#include "ops/residual_mix/end_params.h"
#include "ops/residual_mix/mix_kernel.cuh"

namespace fathom::ops::mix {

static_assert(kSumChannels == kSliceChannels && kSumPitch == kPitch<kMixes> && kEndTokens == kFewTokens);

/// What a block keeps for it in shared memory, kEndBytes from a multiple of 16 bytes on.
struct EndMemory {
  float* fn;      // [mix][stream][channel]
  bf16* streams;  // [token][stream][channel]
  float* comb;    // [token][16]
  float* post;    // [token][stream]
  float* y;       // [token][channel]

  FATHOM_DEVICE explicit EndMemory(std::byte* shared) {
    fn = reinterpret_cast<float*>(shared);
    streams = reinterpret_cast<bf16*>(shared + kEndFn);
    comb = reinterpret_cast<float*>(shared + kEndFn + kEndTokens * kEndStreams);
    post = reinterpret_cast<float*>(shared + kEndFn + kEndTokens * (kEndStreams + kEndComb));
    y = reinterpret_cast<float*>(shared + kEndFn + kEndTokens * (kEndStreams + kEndComb + kEndPost));
  }
};

/// Asks for all but y; all `threads` of a block, which has slice block_x() of the channels. They are a
/// group of their own: whoever waits for others of a thread by number waits for them, too, never for fewer.
FATHOM_DEVICE void ask_end(const End& e, int tokens, const EndMemory& m, int threads) {
  const int channel = device::block_x() * kSumChannels, thread = device::thread_index();
  FATHOM_UNROLL_1
  for (int i = thread; i < kMixes * kStreams * 8; i += threads) {
    const int row = i / 8, piece = i % 8 * 4;
    device::copy_async_16(m.fn + row * kSumChannels + piece,
                          e.fn + row / kStreams * e.fn_stride + row % kStreams * e.channels + channel + piece, true);
  }
  constexpr int kStreamPieces = kEndStreams / 16, kPieces = kStreamPieces + kStreams + 1;
  FATHOM_UNROLL_1
  for (int i = thread; i < tokens * kPieces; i += threads) {
    const int token = i / kPieces, n = i % kPieces;
    if (n < kStreamPieces) {
      const int stream = n / 4, piece = n % 4 * 8;
      device::copy_async_16(m.streams + (token * kStreams + stream) * kSumChannels + piece,
                            e.streams + token * e.token_stride + stream * e.stream_stride + channel + piece, true);
    } else if (n < kPieces - 1) {
      const int piece = (n - kStreamPieces) * 4;
      device::copy_async_16(m.comb + token * 16 + piece, e.comb + token * e.comb_stride + piece, true);
    } else {
      device::copy_async_16(m.post + token * kStreams, e.post + token * e.post_stride, true);
    }
  }
  device::copy_async_commit();
}

/// X' and the sums of the block's channels, by its first warps, four for each token. Each thread has waited for its
/// copies, and the block has met since y was stored.
FATHOM_DEVICE void end_slice(const End& e, int tokens, const EndMemory& m) {
  const int lane = device::lane_index(), warp = device::warp_index(), token = warp / kFewWarps, part = warp % kFewWarps;
  if (token >= tokens) return;
  const int slice = device::block_x(), channel = slice * kSumChannels + lane;
  Inputs in;
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) in.x[k] = m.streams[(token * kStreams + k) * kSumChannels + lane];
  const Carried carried = carry(m.post + token * kStreams, m.comb + token * 16, in);
  const bf16 y = to_bf16(m.y[token * kSumChannels + lane]);
  float x[kStreams];
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    const bf16 v = ended(carried, k, y);
    if (part == k) e.streams[token * e.token_stride + k * e.stream_stride + channel] = v;
    x[k] = to_float(v);
  }
  const float* fn = m.fn + part * (kMixes / kFewWarps) * kStreams * kSumChannels + lane;
  few_sums(
      x, part, [&](int mix, int k) { return fn[(mix * kStreams + k) * kSumChannels]; },
      e.sums + (int64_t{token} * (e.channels / kSumChannels) + slice) * kSumPitch);
}

}  // namespace fathom::ops::mix
