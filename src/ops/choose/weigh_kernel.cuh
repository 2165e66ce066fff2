// Second launch: each block weighs its part beside the largest logit of the row. The last block of a row to come draws,
// or says which candidates the third launch (draw_kernel.cuh) shall collect.
//
// Without filters: sums of the weights in the order of ids, of each warp, then of the ids of the warp in whose sum the
// random number falls. With filters: how many candidates there are above each of a few levels, and the weights of these
// where a share of all is asked for.
#pragma once

#include "ops/choose/exchange.cuh"
#include "ops/choose/weight.h"

namespace fathom::ops::choose {

struct DeviceArithmetic {
  FATHOM_DEVICE static float multiply(float a, float b) { return device::multiply(a, b); }
  FATHOM_DEVICE static float add(float a, float b) { return device::add(a, b); }
};

/// A logit beside the best one of its row, in powers of two.
struct Beside {
  float best, scale;
  FATHOM_DEVICE float operator()(float logit) const { return device::multiply(device::add(logit, -best), scale); }
  FATHOM_DEVICE uint64_t weight(float logit) const { return weight_of<DeviceArithmetic>((*this)(logit)); }
};

/// Whether the sum of all weights counts: top_p is a share of what top_k leaves.
FATHOM_DEVICE bool shares_all(const RowSampling& how) {
  return how.top_k == 0 && how.top_p < 1;
}
FATHOM_DEVICE bool too_small(uint64_t weight, const RowSampling& how) {
  return static_cast<double>(weight) < how.min_p * static_cast<double>(kWeightOfBest);
}

struct WeighShared {
  uint64_t part[kWarps];
  uint64_t weight[kLevelCount][kWarps];
  uint32_t count[kLevelCount][kWarps];
  uint64_t all_weight[kLevelCount];
  uint32_t all_count[kLevelCount];
  uint64_t place;
  int32_t chosen;  // range of a warp; level
  uint32_t last;
};

/// The sum of `v` over the threads before this one; `part` then has the sums of the warps. All threads together.
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
FATHOM_DEVICE uint64_t sum_of_parts(const uint64_t* part) {
  uint64_t sum = 0;
  FATHOM_UNROLL
  for (int w = 0; w < kWarps; ++w) sum += part[w];
  return sum;
}

/// The last block: the token in whose share of all weights, in the order of ids, the random number falls.
FATHOM_DEVICE void draw_in_order(const ChooseArgs& a, const RowSampling& how, Beside beside, Parts parts, Exchange& e,
                                 WeighShared& shared) {
  const int r = device::block_y(), thread = device::thread_index(), vocabulary = static_cast<int>(a.logits.size[1]);
  const uint64_t sum = thread < parts.count * kWarps ? device::load_l2(&e.list[thread]) : 0;
  uint64_t below = sum_before(sum, shared.part);
  uint64_t place = place_of(how.random, sum_of_parts(shared.part));
  if (below <= place && place < below + sum) shared.chosen = thread, shared.place = place - below;
  device::sync_block();
  place = shared.place;

  const float* logits = a.logits.data + r * a.logits.stride[0];
  const int start = shared.chosen * parts.range, each = (parts.range + kThreads - 1) / kThreads;
  const int first = start + thread * each, end = std::min(std::min(first + each, start + parts.range), vocabulary);
  uint64_t own = 0;
  for (int id = first; id < end; ++id) own += beside.weight(logits[id]);
  below = sum_before(own, shared.part);
  if (place < below || place >= below + own) return;
  for (int id = first; id < end; ++id) {
    const uint64_t weight = beside.weight(logits[id]);
    if (place < below + weight) {
      a.token(r) = id;
      return;
    }
    below += weight;
  }
}

/// Counts the candidates of this block's part above each level, and with kShare sums up their weights.
template <bool kShare>
FATHOM_DEVICE void count_levels(const float* logits, int vocabulary, Beside beside, Parts parts, Exchange& e,
                                WeighShared& shared) {
  const int thread = device::thread_index(), warp = thread / 32, lane = thread % 32;
  uint64_t weight[kLevelCount] = {};
  uint32_t count[kLevelCount] = {};
  for_each_logit(logits, vocabulary, parts, [&](float v, int) {
    const float x = beside(v);
    if (!(x > level_at(kLevelCount - 1))) return;
    const uint64_t w = kShare ? weight_of<DeviceArithmetic>(x) : 0;
    weight[kLevelCount - 1] += w, ++count[kLevelCount - 1];
    FATHOM_UNROLL
    for (int l = kLevelCount - 2; l >= 0; --l) {  // most are far below
      if (!(x >= level_at(l))) break;
      weight[l] += w, ++count[l];
    }
  });
  FATHOM_UNROLL
  for (int l = 0; l < kLevelCount; ++l) {
    const uint32_t n = device::sum_of_warp(count[l]);
    if (lane == 0) shared.count[l][warp] = n;
    if constexpr (kShare) {
      const uint64_t w = sum_of_warp(weight[l]);
      if (lane == 0) shared.weight[l][warp] = w;
    }
  }
  device::sync_block();
  if (thread >= kLevelCount) return;
  uint32_t n = 0;
  for (int w = 0; w < kWarps; ++w) n += shared.count[thread][w];
  e.count[thread][device::block_x()] = n;
  if constexpr (kShare) e.weight[thread][device::block_x()] = sum_of_parts(shared.weight[thread]);
}

/// Whether no token below the level can be left by the filters.
FATHOM_DEVICE bool level_is_enough(const RowSampling& how, const WeighShared& shared, int level) {
  if (level == kLevelCount - 1) return true;
  if (how.top_k > 0 && shared.all_count[level] >= static_cast<uint32_t>(how.top_k)) return true;
  const double wanted = how.top_p * static_cast<double>(shared.all_weight[kLevelCount - 1]);
  if (shares_all(how) && static_cast<double>(shared.all_weight[level]) >= wanted) return true;
  return !(how.top_k > 0 && how.top_p < 1) && too_small(weight_of<DeviceArithmetic>(level_at(level)), how);
}

/// The last block: the highest level above which all are that the filters can leave, and where each block's go.
FATHOM_DEVICE void decide_level(const RowSampling& how, float best, Parts parts, Exchange& e, WeighShared& shared,
                                int32_t* token) {
  const int warp = device::thread_index() / 32, lane = device::thread_index() % 32;
  const bool share = shares_all(how);
  static_assert(kLevelCount <= kWarps && kMostParts <= 32);
  uint32_t count = 0;
  if (warp < kLevelCount) {
    count = lane < parts.count ? device::load_l2(&e.count[warp][lane]) : 0;
    const uint32_t all = device::sum_of_warp(count);
    const uint64_t weight = share ? sum_of_warp(lane < parts.count ? device::load_l2(&e.weight[warp][lane]) : 0) : 0;
    if (lane == 0) shared.all_count[warp] = all, shared.all_weight[warp] = weight;
  }
  device::sync_block();
  const bool enough = lane < kLevelCount && level_is_enough(how, shared, lane);
  const int level = device::lowest_bit(device::ballot(enough));
  if (warp != level) return;
  const uint32_t found = shared.all_count[level];
  uint32_t before = count;
  FATHOM_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const auto other =
        static_cast<uint32_t>(device::shuffle_int(static_cast<int>(before), lane >= step ? lane - step : lane));
    if (lane >= step) before += other;
  }
  e.before[lane] = before - count;
  if (lane != 0) return;
  e.level = found > kMostCandidates ? kNothingMore : level;
  e.best = best, e.found = found, e.total = shared.all_weight[kLevelCount - 1];
  if (found > kMostCandidates) *token = kRowNotDrawn;
}

FATHOM_DEVICE void weigh_block(const ChooseArgs& a, Parts parts, Exchange* exchange, WeighShared& shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int r = device::block_y(), thread = device::thread_index(), warp = thread / 32, lane = thread % 32;
  Exchange& e = exchange[r];
  const RowSampling how = a.sampling(r);
  const uint64_t best = largest_of_warp(lane < parts.count ? device::load_l2(&e.largest[lane]) : 0);
  if (best == kBad || how.scale == 0) {
    if (device::block_x() == 0 && thread == 0) {
      a.token(r) = best == kBad ? kRowNotFinite : id_of(best);
      e.level = kNothingMore;
    }
    return;
  }
  const Beside beside{logit_of(best), how.scale};
  const float* logits = a.logits.data + r * a.logits.stride[0];
  const int vocabulary = static_cast<int>(a.logits.size[1]);
  if (!how.filters()) {
    uint64_t sum = 0;
    for_each_logit(logits, vocabulary, parts, [&](float v, int) { sum += beside.weight(v); });
    sum = sum_of_warp(sum);
    if (lane == 0) e.list[device::block_x() * kWarps + warp] = sum;
    if (last_of_row(e, &shared.last)) draw_in_order(a, how, beside, parts, e, shared);
    return;
  }
  if (shares_all(how))
    count_levels<true>(logits, vocabulary, beside, parts, e, shared);
  else
    count_levels<false>(logits, vocabulary, beside, parts, e, shared);
  if (last_of_row(e, &shared.last)) decide_level(how, beside.best, parts, e, shared, &a.token(r));
}

}  // namespace fathom::ops::choose
