// How blocks of the compressor's kernels share the work.
#pragma once

#include "ops/compress/compress.h"

namespace fathom::ops::compress {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kPoolChannels = 64;  // two a lane
inline constexpr int kStateStripes = 16;  // blocks of a long segment's state
inline constexpr int kPooledFloats = 4 * kWarps * kPoolChannels;
/// Shared memory of a block that compresses an entry alone.
inline constexpr size_t kWholeBytes = (kHeadDim + kPooledFloats) * sizeof(float);

}  // namespace fathom::ops::compress
