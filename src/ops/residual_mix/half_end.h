// The end of a half block inside the op that computes its y, where that op can: what residual_mix would begin with, by
// the same code, bit for bit. One launch less, and y need not be waited for.
#pragma once

#include "ops/op.h"

namespace fathom::ops {

inline constexpr int kStreams = 4;
inline constexpr int kMixes = 24;  // 4 pre, 4 post, 16 comb
/// Sums of so many channels, and values for them: 24 mixes, the sum of squares, 7 that nobody writes.
inline constexpr int kSumChannels = 32, kSumPitch = 32;
/// Of more tokens no op ends a half.
inline constexpr int kEndTokens = 4;

/// X'[k] = bf(post[k] * y + sum_j comb[j][k] * X[j]), and of each 32 channels of it the parts of fn . X' and of the sum
/// of squares. streams, post and comb are read before the launch before this one has ended: it must not write
/// them, and must let this one in behind its own wait alone.
struct HalfEnd {
  View<bf16, 3> streams;      // [T, 4, d] in and out; data == null: no half ends
  View<const float, 2> post;  // [T, 4]
  View<const float, 3> comb;  // [T, 4, 4]
  View<const float, 2> fn;    // [24, 4 * d] of the half that begins
  View<float, 3> sums;        // out [T, d / 32, 32]
};

}  // namespace fathom::ops
