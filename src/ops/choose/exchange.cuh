// How the vocabulary is divided over the blocks of a row, and what these leave for one another.
#pragma once

#include <algorithm>

#include "ops/choose/choose.h"
#include "ops/choose/rank.cuh"
#include "ops/choose/weight.h"

namespace fathom::ops::choose {

inline constexpr int kMostParts = 32;
inline constexpr int kLeastPart = 2048;  // logits: less is not worth a block
inline constexpr int kMostCandidates = 2048;
inline constexpr int kBlocksPerSm = 2;

/// A block has the part of its x index, each of its warps the same number of neighbouring logits of it.
struct Parts {
  int range;  // logits of a warp, a multiple of 32
  int count;
};

/// Parts for `rows` rows of `vocabulary` > 0 logits: about as many blocks as run at once. Any number gives the same
/// tokens.
constexpr Parts parts_of(int64_t vocabulary, int64_t rows, int sm_count) {
  const int64_t blocks = std::max<int64_t>(1, int64_t{kBlocksPerSm} * sm_count / std::max<int64_t>(1, rows));
  const int64_t wanted = std::min({blocks, int64_t{kMostParts}, (vocabulary + kLeastPart - 1) / kLeastPart});
  const int64_t range = ((vocabulary + wanted * kWarps - 1) / (wanted * kWarps) + 31) / 32 * 32;
  return {static_cast<int>(range), static_cast<int>((vocabulary + range * kWarps - 1) / (range * kWarps))};
}

/// Powers of two beside the best token's probability; the last one: all that have a weight.
inline constexpr int kLevelCount = 11;
FATHOM_DEVICE float level_at(int i) {
  constexpr float levels[kLevelCount] = {
      -1, -2, -3, -4.5f, -6, -8, -10, -13, -18, -24, -static_cast<float>(kWeightBits)};
  return levels[i];
}
inline constexpr int kNothingMore = -1;  // in place of a level: the token of the row is written

/// Of one row. Zero before the first launch; `arrived` is zero again behind every launch and the rest is written before
/// it is read, so that launches of all shapes may follow one another.
struct alignas(16) Exchange {
  uint32_t arrived;  // blocks of the row
  int32_t level;     // of the candidates to collect, or kNothingMore
  float best;        // the largest logit
  uint32_t found;    // candidates
  uint64_t total;    // their weights and those of all others
  uint64_t largest[kMostParts];
  uint64_t weight[kLevelCount][kMostParts];
  uint32_t count[kLevelCount][kMostParts];
  uint32_t before[kMostParts];     // candidates in the parts before
  uint64_t list[kMostCandidates];  // ranks of the candidates; without filters: sums of the weights of the warps
};
static_assert(kMostCandidates >= kMostParts * kWarps);

/// All threads of the block, after what they have written to the row's exchange. True in the last block of the row to
/// come, which sees what the others wrote.
FATHOM_DEVICE bool last_of_row(Exchange& e, uint32_t* shared_flag) {
  device::sync_block();
  if (device::thread_index() == 0) {
    device::fence();
    const bool last = device::atomic_add(&e.arrived, 1u) + 1 == static_cast<uint32_t>(device::grid_x());
    if (last) e.arrived = 0;
    device::fence();
    *shared_flag = last;
  }
  device::sync_block();
  return *shared_flag != 0;
}

/// The logits of a warp, 8 for each lane at a time: take(logit, id).
template <typename Take>
FATHOM_DEVICE void for_each_logit(const float* logits, int vocabulary, Parts parts, const Take& take) {
  constexpr int kEach = 8;
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  const int first = (device::block_x() * kWarps + warp) * parts.range;
  const int end = std::min(first + parts.range, vocabulary);
  FATHOM_UNROLL_1
  for (int at = first + lane; at < end; at += 32 * kEach) {
    float v[kEach];
    FATHOM_UNROLL
    for (int i = 0; i < kEach; ++i) v[i] = at + 32 * i < end ? logits[at + 32 * i] : 0;
    FATHOM_UNROLL
    for (int i = 0; i < kEach; ++i)
      if (at + 32 * i < end) take(v[i], at + 32 * i);
  }
}

}  // namespace fathom::ops::choose
