// Fills memory: each thread writes words of its own, a grid apart.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/fill/fill_word.h"

namespace fathom::ops::fill_words {

inline constexpr int kThreads = 256;

/// Grid (any number of blocks).
FATHOM_DEVICE void fill_block(const FillArgs& a) {
  const int64_t words = a.bytes / 8, stride = int64_t{device::grid_x()} * kThreads;
  const int64_t first = int64_t{device::block_x()} * kThreads + device::thread_index();
  auto* out = reinterpret_cast<uint64_t*>(a.to);
  for (int64_t i = first; i < words; i += stride) out[i] = word_at(a, i);
  const int64_t rest = a.bytes - 8 * words;
  if (first < rest)
    a.to[8 * words + first] = static_cast<std::byte>(word_at(a, words) >> 8 * static_cast<uint64_t>(first));
}

}  // namespace fathom::ops::fill_words
