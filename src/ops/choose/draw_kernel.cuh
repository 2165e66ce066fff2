// Drawing the token of one row by one block: the same token as choose_ref, since weights are whole numbers.
//
// Without filters: sums of the weights in the order of ids, ever smaller ranges. With filters: one pass counts the
// candidates above each of a few levels, a second one collects those above the highest level that holds all that the
// filters can leave; they are sorted, and the filters are places in the sums of their weights.
#pragma once

#include <algorithm>

#include "ops/choose/choose.h"
#include "ops/choose/rank.cuh"
#include "ops/choose/weight.h"

namespace fathom::ops::choose {

struct DeviceArithmetic {
  FATHOM_DEVICE static float multiply(float a, float b) { return device::multiply(a, b); }
  FATHOM_DEVICE static float add(float a, float b) { return device::add(a, b); }
};

inline constexpr int kMostCandidates = 2048;
/// Powers of two beside the best token's probability; the last one: all that have a weight.
inline constexpr int kLevelCount = 9;
FATHOM_DEVICE float level_at(int i) {
  constexpr float levels[kLevelCount] = {-1, -2, -4, -6, -9, -13, -18, -24, -static_cast<float>(kWeightBits)};
  return levels[i];
}

struct DrawShared {
  uint64_t key[kMostCandidates];        // rank_of() the candidates
  uint64_t below[kMostCandidates + 1];  // sum of the weights before each
  uint64_t part[kWarps];
  uint64_t weight[kLevelCount];
  uint32_t count[kLevelCount];
  uint32_t found, kept;
};

struct Row {
  const float* logits;
  int vocabulary;
  float best;
  RowSampling how;

  FATHOM_DEVICE float below_best(int id) const { return device::multiply(device::add(logits[id], -best), how.scale); }
};

FATHOM_DEVICE uint64_t sum_of_warp(uint64_t v) {
  FATHOM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) v += device::shuffle_from(v, device::thread_index() % 32 ^ mask);
  return v;
}

/// The sum of `v` over the threads before this one. All threads together.
FATHOM_DEVICE uint64_t sum_before(uint64_t v, uint64_t* part) {
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  uint64_t sum = v;
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = device::shuffle_from(sum, lane >= step ? lane - step : lane);
    if (lane >= step) sum += other;
  }
  device::sync_block();  // `part` may still be read
  if (lane == 31) part[warp] = sum;
  device::sync_block();
  sum -= v;
  for (int w = 0; w < warp; ++w) sum += part[w];
  return sum;
}

/// The token in whose share of all weights, in the order of ids, the random number falls.
FATHOM_DEVICE void draw_in_order(const Row& row, DrawShared& shared, int32_t* token) {
  const int thread = device::thread_index(), warp = thread / 32, lane = thread % 32;
  const int range = (row.vocabulary + kThreads - 1) / kThreads * 32;  // of a warp
  uint64_t sum = 0;
  FATHOM_UNROLL_8
  for (int i = lane; i < range; i += 32) {
    const int id = warp * range + i;
    if (id < row.vocabulary) sum += weight_of<DeviceArithmetic>(row.below_best(id));
  }
  sum = sum_of_warp(sum);
  if (lane == 0) shared.part[warp] = sum;
  device::sync_block();
  uint64_t total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.part[w];
  uint64_t place = place_of(row.how.random, total);
  int chosen = 0;
  for (; chosen + 1 < kWarps && place >= shared.part[chosen]; ++chosen) place -= shared.part[chosen];

  const int each = (range + kThreads - 1) / kThreads, first = chosen * range + thread * each;
  const int end = std::min(std::min(first + each, (chosen + 1) * range), row.vocabulary);
  uint64_t own = 0;
  for (int id = first; id < end; ++id) own += weight_of<DeviceArithmetic>(row.below_best(id));
  uint64_t below = sum_before(own, shared.part);
  if (place < below || place >= below + own) return;
  for (int id = first; id < end; ++id) {
    const uint64_t weight = weight_of<DeviceArithmetic>(row.below_best(id));
    if (place < below + weight) {
      *token = id;
      return;
    }
    below += weight;
  }
}

/// Counts the candidates above each level and sums up their weights.
FATHOM_DEVICE void count_levels(const Row& row, DrawShared& shared) {
  const int thread = device::thread_index();
  if (thread < kLevelCount) shared.weight[thread] = 0, shared.count[thread] = 0;
  if (thread == 0) shared.found = shared.kept = 0;
  uint64_t weight[kLevelCount] = {};
  uint32_t count[kLevelCount] = {};
  for (int id = thread; id < row.vocabulary; id += kThreads) {
    const float x = row.below_best(id);
    const uint64_t w = weight_of<DeviceArithmetic>(x);
    if (w == 0) continue;
    weight[kLevelCount - 1] += w, ++count[kLevelCount - 1];
    if (x < level_at(kLevelCount - 2)) continue;
    FATHOM_UNROLL
    for (int l = 0; l < kLevelCount - 1; ++l)
      if (x >= level_at(l)) weight[l] += w, ++count[l];
  }
  device::sync_block();
  FATHOM_UNROLL
  for (int l = 0; l < kLevelCount; ++l) {
    const uint64_t w = sum_of_warp(weight[l]), n = sum_of_warp(count[l]);
    if (thread % 32 != 0) continue;
    add_to(&shared.weight[l], w);
    device::atomic_add(&shared.count[l], static_cast<uint32_t>(n));
  }
  device::sync_block();
}

FATHOM_DEVICE bool too_small(uint64_t weight, const RowSampling& how) {
  return static_cast<double>(weight) < how.min_p * static_cast<double>(kWeightOfBest);
}

/// Whether no token below the level can be left by the filters.
FATHOM_DEVICE bool level_is_enough(const RowSampling& how, const DrawShared& shared, int level) {
  if (level == kLevelCount - 1) return true;
  if (how.top_k > 0 && shared.count[level] >= static_cast<uint32_t>(how.top_k)) return true;
  const double wanted = how.top_p * static_cast<double>(shared.weight[kLevelCount - 1]);
  if (how.top_k == 0 && how.top_p < 1 && static_cast<double>(shared.weight[level]) >= wanted) return true;
  return !(how.top_k > 0 && how.top_p < 1) && too_small(weight_of<DeviceArithmetic>(level_at(level)), how);
}

/// Sorts the keys, the largest first.
FATHOM_DEVICE void sort_keys(uint64_t* key, int count) {
  int size = 32;
  while (size < count) size *= 2;
  for (int i = device::thread_index(); i < size; i += kThreads)
    if (i >= count) key[i] = 0;
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      device::sync_block();
      for (int i = device::thread_index(); i < size / 2; i += kThreads) {
        const int a = 2 * i - (i & (step - 1)), b = a + step;
        const bool falls = (a & width) == 0;
        const uint64_t x = key[a], y = key[b];
        if ((x < y) == falls) key[a] = y, key[b] = x;
      }
    }
  }
  device::sync_block();
}

/// How many of the first `count` entries, of which this thread looks at a part, satisfy a condition that holds up to
/// some place.
template <typename Condition>
FATHOM_DEVICE int count_kept(DrawShared& shared, int count, const Condition& condition) {
  device::sync_block();
  if (device::thread_index() == 0) shared.kept = 0;
  device::sync_block();
  uint32_t kept = 0;
  for (int i = device::thread_index(); i < count; i += kThreads) kept += i == 0 || condition(i);
  if (kept > 0) device::atomic_add(&shared.kept, kept);
  device::sync_block();
  return static_cast<int>(shared.kept);
}

FATHOM_DEVICE void draw_filtered(const Row& row, DrawShared& shared, int32_t* token) {
  const RowSampling& how = row.how;
  const int thread = device::thread_index();
  count_levels(row, shared);
  int level = 0;
  while (!level_is_enough(how, shared, level)) ++level;
  if (shared.count[level] > kMostCandidates) {
    if (thread == 0) *token = kRowNotDrawn;
    return;
  }
  FATHOM_UNROLL_8
  for (int id = thread; id < row.vocabulary; id += kThreads) {
    const float x = row.below_best(id);
    if (x >= level_at(level) && weight_of<DeviceArithmetic>(x) > 0)
      shared.key[device::atomic_add(&shared.found, 1u)] = rank_of(row.logits[id], id);
  }
  device::sync_block();
  const int found = static_cast<int>(shared.found);
  sort_keys(shared.key, found);

  constexpr int kEach = kMostCandidates / kThreads;
  const auto weight_at = [&](int i) {
    return weight_beside<DeviceArithmetic>(logit_of(shared.key[i]), row.best, how.scale);
  };
  uint64_t own = 0;
  for (int i = kEach * thread; i < kEach * (thread + 1) && i < found; ++i) own += weight_at(i);
  uint64_t below = sum_before(own, shared.part);
  for (int i = kEach * thread; i < kEach * (thread + 1) && i < found; ++i) {
    shared.below[i] = below;
    below += weight_at(i);
    if (i + 1 == found) shared.below[found] = below;
  }
  int kept = how.top_k > 0 ? std::min(how.top_k, found) : found;
  if (how.top_p < 1) {
    device::sync_block();
    const double wanted =
        how.top_p * static_cast<double>(how.top_k > 0 ? shared.below[kept] : shared.weight[kLevelCount - 1]);
    kept = count_kept(shared, kept, [&](int i) { return static_cast<double>(shared.below[i]) < wanted; });
  }
  kept = count_kept(shared, kept, [&](int i) { return !too_small(weight_at(i), how); });
  const uint64_t place = place_of(how.random, shared.below[kept]);
  for (int i = thread; i < kept; i += kThreads)
    if (shared.below[i] <= place && place < shared.below[i + 1]) *token = id_of(shared.key[i]);
}

}  // namespace fathom::ops::choose
