#include <algorithm>
#include <bit>

#include "base/error.h"
#include "ops/linear/gemm_params.h"

namespace fathom::ops::gemm {

size_t shared_for(Math m, const Plan& p, int chunk_units) {
  const size_t rows = static_cast<size_t>(p.slice_warps * p.token_tile());
  const size_t unit = kUnitBytes * static_cast<size_t>(widening(m)) + (has_scales(m) ? sizeof(float) : 0);
  size_t staged = rows * unit * static_cast<size_t>(chunk_units);
  if (is_wide(m)) {  // weights go through shared memory, and their scales
    const auto warps = static_cast<size_t>(p.slice_warps * p.group_warps);
    staged += warps * kGroupRows * kUnitBytes * static_cast<size_t>(p.stages);
    staged += warps * static_cast<size_t>(chunk_units) * sizeof(float);
  }
  const size_t partial = rows * static_cast<size_t>(p.group_warps * kGroupRows + 4) * sizeof(float);
  return std::max(staged, partial);
}

namespace {

/// Enough warps with weights in flight to saturate memory: 9 on each multiprocessor of the largest GPU. A constant,
/// so that results do not depend on the device.
constexpr int64_t kWarpsWanted = 1200;

int log2_slices_for(int groups, int units) {
  int log2 = 0;
  while (1 << log2 < kMaxSlices && int64_t{groups} << log2 < kWarpsWanted && 2 << log2 <= units) ++log2;
  return log2;
}

/// The largest chunk that fits; false when none does. More than the least is under way where `wish` bytes allow it.
bool fit(Math m, Plan& p, int units, size_t most, size_t wish) {
  const int longest = longest_slice(units, p.log2_slices), step = chunk_step(m, p.tiles);
  int chunk = longest;
  // More under way where blocks are small: the kernel before may leave memory idle. Large blocks would start later.
  p.ahead = is_wide(m) && p.tiles <= 2 && p.threads() <= 32 * kMaxWarps / 2 ? kMostAhead : kLeastAhead;
  for (;; --p.ahead) {
    p.stages = std::min(p.ahead + 1, longest);
    if (p.ahead == kLeastAhead || shared_for(m, p, chunk) <= wish) break;
  }
  p.ahead = std::min(p.ahead, longest);
  if (shared_for(m, p, chunk) > most) {
    chunk -= chunk % step == 0 ? step : chunk % step;
    while (chunk > 0 && shared_for(m, p, chunk) > most) chunk -= step;
  }
  if (chunk <= 0) return false;
  p.chunk_units = chunk, p.shared_bytes = shared_for(m, p, chunk);
  return true;
}

}  // namespace

Plan make_plan(Math math, int groups, int units, int64_t tokens, const DeviceInfo& device, bool clusters,
               std::optional<int> log2_slices) {
  Plan p;
  p.log2_slices = log2_slices ? *log2_slices : log2_slices_for(groups, units);
  p.tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8;
  const int busy = std::max(1, device.sm_count * 7 / 10), least = least_group_warps(math);
  const auto blocks = [&](int group_warps, int cluster) {
    const int64_t token_tiles = (tokens + p.token_tile() - 1) / p.token_tile();
    return int64_t{(groups + group_warps - 1) / group_warps} * cluster * std::max<int64_t>(1, token_tiles);
  };
  // Each block reads x once for its slices: with more tokens, fewer slices and more rows a block.
  const int most_cluster = clusters ? std::min(kMaxCluster, p.slices()) : 1;
  p.cluster = std::min(std::max(p.tiles, p.slices() * least / kMaxWarps), most_cluster);
  while (p.cluster < most_cluster && blocks(least, p.cluster) < busy) p.cluster *= 2;
  p.slice_warps = p.slices() / p.cluster;
  if (p.slice_warps * least > most_warps(math, p.tiles)) p.tiles = 2;

  const auto all = static_cast<size_t>(device.shared_bytes);
  for (; p.tiles >= 1; p.tiles /= 2) {  // two blocks a multiprocessor where they are small
    const int warps = p.tiles <= 2 ? std::max(kMaxWarps / 2, p.slice_warps * least) : most_warps(math, p.tiles);
    p.group_warps = warps / p.slice_warps;
    while (p.group_warps > least && blocks(p.group_warps, p.cluster) < busy) p.group_warps /= 2;
    // All blocks at once, if two or three of them on a multiprocessor are enough for that.
    const int64_t resident = (blocks(p.group_warps, p.cluster) + device.sm_count - 1) / std::max(1, device.sm_count);
    const size_t wish = all / (resident > 2 ? 3 : 2) - 1024;
    if (p.threads() <= 32 * kMaxWarps / 2 && fit(math, p, units, all / 2 - 1024, wish)) return p;
    if (fit(math, p, units, all, wish)) return p;
  }
  fail("linear: {} bytes of shared memory are too few for a product kernel", device.shared_bytes);
}

void set_plan(Params& p, const Plan& plan) {
  const auto log2 = [](int n) { return std::countr_zero(static_cast<unsigned>(n)); };
  p.log2_slices = plan.log2_slices, p.cluster = plan.cluster, p.chunk_units = plan.chunk_units;
  p.token_bits = std::bit_width(static_cast<unsigned>(std::min(p.tokens, plan.token_tile()) - 1));
  p.ahead = plan.ahead, p.stages = plan.stages;
  p.log2_slice_warps = log2(plan.slice_warps), p.log2_group_warps = log2(plan.group_warps);
}

void launch_failed(const char* what, const char* why) {
  fail("linear: CUDA refuses the {}: {}", what, why);
}

}  // namespace fathom::ops::gemm
