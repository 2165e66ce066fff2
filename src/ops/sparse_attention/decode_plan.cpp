#include "ops/sparse_attention/decode_plan.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "ops/sparse_attention/decode_layout.h"

namespace fathom::ops::sparse_decode {
namespace {

constexpr int kMostSplits = 32, kMostClusterSplits = 16, kTileRows = 16;
constexpr int64_t kPatience = 40000;  // cycles; about 20 us, several times what the slowest split of a full GPU lags

int64_t most_rows(const SparseAttentionArgs& args) {
  return (args.window.index.data ? args.window.index.size[1] : 0) +
         (args.extra.index.data ? args.extra.index.size[1] : 0);
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Estimated time of one block, in cycles: start and end, tiles, and the exchange of partial outputs.
double block_cost(int block_heads, int64_t tiles, int splits) {
  const double per_tile = block_heads == 16 ? 560 : block_heads == 32 ? 800 : 1300;
  const double combine = splits == 1 ? 0 : 2500 + 20.0 * block_heads + 15.0 * splits;
  return 4000 + per_tile * static_cast<double>(tiles) + combine;
}

bool aligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

bool rows_fit(const RowSet& set) {
  if (!set.index.data) return true;
  return aligned(set.pool.data, 16) && set.pool.stride % 16 == 0 && set.pool.page_rows > 0 &&
         set.index.size[1] < 1 << 30;
}

}  // namespace

void launch_failed(const char* what, const char* why) {
  fail("sparse attention on the GPU: {}: {}", what, why);
}

Plan choose_plan(const SparseAttentionArgs& args, const DeviceInfo& device, bool cluster) {
  const int64_t tokens = args.q.size[0], heads = args.q.size[1],
                tiles = std::max<int64_t>(1, divide_up(most_rows(args), kTileRows));
  const int64_t sms = std::max(1, device.sm_count);
  Plan best;
  double best_cost = 0;
  for (int block_heads : {64, 32, 16}) {
    if (args.format == RowFormat::bf16 && block_heads == 64) continue;
    if (block_heads > 16 && block_heads / 2 >= heads) continue;  // half the block would be padding
    const int64_t units = tokens * divide_up(heads, block_heads);
    for (int splits = 1; splits <= std::min<int64_t>(tiles, cluster ? kMostClusterSplits : kMostSplits); ++splits) {
      const int64_t waves = divide_up(units * splits, sms);
      const double cost = static_cast<double>(waves) * block_cost(block_heads, divide_up(tiles, splits), splits);
      if (best_cost != 0 && cost >= best_cost) continue;
      best_cost = cost;
      best = {block_heads, splits, cluster && splits > 1, false, false, waves == 1 ? kPatience : 0};
    }
  }
  return best;
}

Plan choose_exact_plan(const SparseAttentionArgs& args) {
  const int64_t heads = args.q.size[1];
  const int64_t rows_each = heads > 16 ? 160 : 80;
  const int64_t splits = std::clamp<int64_t>(divide_up(most_rows(args), rows_each), 1, kMostSplits);
  return {heads > 16 ? 32 : 16, static_cast<int>(splits)};
}

Workspace workspace_for(const SparseAttentionArgs& args, const Plan& plan) {
  Workspace space;
  if (plan.splits == 1 || plan.cluster) return space;
  const auto units = static_cast<size_t>(args.q.size[0] * divide_up(args.q.size[1], plan.block_heads));
  const auto align = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  space.zeroed = units * sizeof(uint64_t);
  space.state_at = align(space.zeroed);
  const size_t parts = units * static_cast<size_t>(plan.splits);
  space.partial_at = space.state_at + align(parts * static_cast<size_t>(plan.block_heads) * 2 * sizeof(float));
  space.total = space.partial_at + parts * static_cast<size_t>(plan.block_heads) * kHeadDim * sizeof(float);
  return space;
}

bool shapes_fit(const SparseAttentionArgs& args) {
  const auto multiple = [](const auto& view, int64_t n) {
    return !view.data || (view.stride[0] % n == 0 && view.stride[1] % n == 0 &&
                          aligned(view.data, n * static_cast<int64_t>(sizeof(*view.data))));
  };
  return args.q.size[0] <= 65535 && args.q.size[1] <= 16 * 65535 && args.q.size[2] == kHeadDim && multiple(args.q, 8) &&
         multiple(args.out, 8) && multiple(args.out_codes, 8) && (args.out.data || args.out_codes.data) &&
         (!args.out_codes.data == !args.out_scale.data) && rows_fit(args.window) && rows_fit(args.extra);
}

}  // namespace fathom::ops::sparse_decode
