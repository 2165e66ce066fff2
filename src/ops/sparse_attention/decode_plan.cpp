#include "ops/sparse_attention/decode_plan.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "ops/sparse_attention/decode_layout.h"
#include "ops/sparse_attention/decode_pack.h"
#include "ops/sparse_attention/decode_params.h"

namespace fathom::ops::sparse_decode {
namespace {

constexpr int64_t kCounters = 16384;  // units whose splits can meet through memory
constexpr int64_t kManyRows = 512;    // from here on warpgroups pay with more than a quarter of their heads (kind_fits)
constexpr int64_t kPatience = 40000;  // cycles; about 20 us, several times what the slowest split of a full GPU lags

int64_t most_rows(const SparseAttentionArgs& args) {
  return (args.window.index.data ? args.window.index.size[1] : 0) +
         (args.extra.index.data ? args.extra.index.size[1] : 0);
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// A kind of block and its cost in microseconds on an H200: start and end, a tile, a tile when two blocks share the SM,
/// and the meeting of splits (each time, and when all SMs exchange partial outputs at once; by mail so much less).
/// Least squares over measured plans; what counts is the order of plans, and that depends little on the GPU.
struct Kind {
  int block_heads, tile_rows;
  int burst;    // not 0: the kernel for few rows, whose blocks always work on this many tiles
  int cluster;  // not 0: the number of splits
  bool wide;
  double fixed, tile, shared_tile, meet, meet_full, mail;
};
constexpr Kind kKinds[] = {
    {16, 16, 0, 0, false, 3.9, 1.22, 0.5, 2.4, 2.2, 0},    {32, 16, 0, 0, false, 4.9, 1.30, 0.0, 1.9, 0.9, 0},
    {64, 16, 0, 0, false, 6.8, 1.73, 0.0, 2.0, 2.0, 0},    {64, 64, 0, 0, true, 7.6, 2.86, 0.0, 2.7, 1.6, 0},
    {16, 16, 2, 0, false, 4.0, 0.50, 0.55, 2.3, 1.6, 0.9}, {16, 16, 3, 0, false, 3.6, 0.50, 0.55, 2.2, 1.4, 0.9},
    {16, 16, 5, 0, false, 4.0, 0.50, 0.65, 2.3, 1.6, 1.8}, {32, 16, 3, 0, false, 5.1, 0.50, 0.0, 3.3, 0.25, 1.2},
    {32, 16, 5, 0, false, 5.1, 0.50, 0.0, 3.0, 0.9, 1.25}, {64, 16, 3, 0, false, 6.8, 0.60, 0.0, 3.5, 1.2, 0.3},
    {64, 16, 5, 0, false, 6.8, 0.60, 0.0, 3.5, 2.1, 0.3},  {16, 16, 3, 16, false, 2.0, 0.40, 0.6, 0.8, 3.8, 0},
    {16, 16, 5, 8, false, 2.4, 0.40, 0.05, 0.8, 4.8, 0},   {64, 16, 2, 0, true, 6.8, 0.42, 0.0, 2.7, 2.9, 0.8},
    {64, 16, 3, 0, true, 6.8, 0.42, 0.0, 2.7, 2.9, 0.8},   {64, 16, 5, 0, true, 6.8, 0.42, 0.0, 2.7, 2.9, 0.8},
};

/// Tiles that the busiest block of a kind has.
int64_t tiles_of_block(const Kind& kind, int64_t rows, int splits) {
  return divide_up(divide_up(rows, kind.tile_rows), splits);
}

double plan_cost(const Kind& kind, int64_t rows, int64_t units, int splits, int64_t sms, int64_t per_sm, bool mail) {
  const int64_t blocks = units * splits, tiles = kind.burst ? kind.burst : tiles_of_block(kind, rows, splits);
  // Clusters of 8 find room for nine tenths of the blocks that would fit alone.
  const int64_t room = kind.cluster ? sms * per_sm * 9 / 10 : sms * per_sm;
  const double waves = static_cast<double>(divide_up(blocks, std::max<int64_t>(1, room)));
  const double load = std::min(1.0, static_cast<double>(blocks) / static_cast<double>(sms));
  const double tile = kind.tile + (blocks > sms ? kind.shared_tile : 0);
  const int64_t sums = kind.cluster ? 1 : divide_up(8, splits);  // 64 pieces of work, 8 warps a split
  const double each = kind.meet - (mail ? kind.mail : 0);
  const double meet = splits == 1 ? 0 : each + kind.meet_full * load + 0.5 * static_cast<double>(sums - 1);
  return kind.fixed + waves * (tile * static_cast<double>(tiles) + meet);
}

/// Whether a GPU and arguments are such that blocks of a kind can work on them. Clusters want most of a whole GPU: a
/// slice of one may have no 16 SMs that lie together.
bool kind_fits(const Kind& kind, const SparseAttentionArgs& args, const DeviceInfo& device, bool sm90) {
  const int64_t heads = args.q.size[1];
  // Half the block would be padding. Warpgroups are so much faster that it pays where rows are many.
  const bool pays = kind.wide && !kind.burst && heads > kind.block_heads / 4 && most_rows(args) >= kManyRows;
  if (kind.block_heads > 16 && kind.block_heads / 2 >= heads && !pays) return false;
  if (args.format == RowFormat::bf16 && (kind.block_heads == 64 || kind.burst)) return false;
  if (kind.block_heads == 64 && kind.burst > 3 && device.shared_bytes < Burst<4, 2, 5, 0>::kSharedBytes) return false;
  if (kind.cluster && (args.out_codes.data || device.sm_count < 100)) return false;
  return sm90 || (!kind.wide && !kind.cluster);
}

/// Blocks of 16 heads of which one SM has room for: two where it has twice the portable shared memory.
int64_t small_blocks_per_sm(const DeviceInfo& device) {
  return device.shared_bytes >= 2 * kPortableSharedBytes ? 2 : 1;
}

/// Splits wait for each other only when all blocks can be resident.
int64_t patience_for(int64_t blocks, int64_t resident) {
  return blocks <= resident ? kPatience : 0;
}

bool aligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

bool rows_fit(const RowSet& set) {
  if (!set.index.data) return true;
  return aligned(set.pool.data, 16) && set.pool.stride % 16 == 0 && set.pool.page_rows > 0 &&
         set.index.size[1] < 1 << 30;
}

/// Whether splits can hand over partial results by mail: blocks that wait for each other without an end.
bool takes_mail(const Kind& kind, const SparseAttentionArgs& args, int64_t units, int splits, int64_t patience) {
  return kind.burst && !kind.cluster && patience > 0 && splits > 1 && splits <= kMostMailSplits &&
         !args.out_codes.data && units * splits * kind.block_heads <= 64 * kMostMailBlocks;
}

/// The best plan of a kind of block for `tokens` of `heads`.
void try_kind(const Kind& kind, const SparseAttentionArgs& args, const DeviceInfo& device, int64_t tokens,
              int64_t heads, int pack, bool sm90, double& best_cost, Plan& best) {
  // Tokens of a request that are taken together differ in a few columns at the end of both lists: a pass for each.
  const int64_t rows = std::max<int64_t>(1, most_rows(args)) + 2 * 16 * (pack - 1);
  const int64_t sms = std::max(1, device.sm_count);
  const int64_t units = tokens * divide_up(heads, kind.block_heads);
  const int64_t per_sm = kind.block_heads == 16 ? small_blocks_per_sm(device) : 1;
  const int64_t most = units > kCounters ? 1 : std::min<int64_t>(divide_up(rows, kind.tile_rows), kMostSplits);
  for (int splits = kind.cluster ? kind.cluster : 1; splits <= (kind.cluster ? kind.cluster : most); ++splits) {
    if (kind.burst && tiles_of_block(kind, rows, splits) > kind.burst) continue;
    // Splits that cannot wait for each other leave the sum to the last of them, one after the other.
    const int64_t resident = kind.cluster == 8 ? 4 * sms : kind.cluster ? sms * 3 / 2 : sms * per_sm;
    if (splits > 1 && units * splits > resident) continue;
    // Masks and the search for shared rows cost a fifth.
    const int64_t patience = patience_for(units * splits, sms * per_sm);
    const bool mail = takes_mail(kind, args, units, splits, patience);
    const double cost = plan_cost(kind, rows, units, splits, sms, per_sm, mail) * (pack > 1 ? 1.2 : 1);
    if (best_cost != 0 && cost >= best_cost) continue;
    best_cost = cost;
    best = {kind.block_heads, splits, kind.wide, sm90};
    best.burst = kind.burst, best.cluster = kind.cluster, best.pack = pack;
    best.patience = patience, best.mail = mail;
  }
}

}  // namespace

void launch_failed(const char* what, const char* why) {
  fail("sparse attention on the GPU: {}: {}", what, why);
}

Plan choose_plan(const SparseAttentionArgs& args, const DeviceInfo& device, bool sm90) {
  const int64_t tokens = args.q.size[0], heads = args.q.size[1];
  Plan best;
  double best_cost = 0;
  for (const Kind& kind : kKinds)
    if (kind_fits(kind, args, device, sm90)) try_kind(kind, args, device, tokens, heads, 1, sm90, best_cost, best);
  const int queries = args.queries_per_request;
  if (!packs(args, queries)) return best;
  for (const Kind& kind : kKinds)
    if (kind.block_heads == 32 && !kind.burst && !kind.wide && heads < 32)
      try_kind(kind, args, device, tokens / queries, heads * queries, queries, sm90, best_cost, best);
  return best;
}

Plan choose_exact_plan(const SparseAttentionArgs& args, const DeviceInfo& device) {
  const int64_t heads = args.q.size[1];
  Plan plan;
  plan.wide = device.compute_capability == 90 && args.format == RowFormat::v4 && heads > 32;
  plan.block_heads = plan.wide ? 64 : heads > 16 ? 32 : 16;
  const int64_t rows_each = plan.block_heads == 16 ? 160 : 320;
  plan.splits = static_cast<int>(std::clamp<int64_t>(divide_up(most_rows(args), rows_each), 1, kMostSplits));
  // Patience changes who adds the partial outputs up, not the sum.
  plan.patience = patience_for(args.q.size[0] * divide_up(heads, plan.block_heads) * plan.splits, device.sm_count);
  return plan;
}

Workspace workspace_for(const SparseAttentionArgs& args, const Plan& plan) {
  Workspace space;
  if (plan.splits == 1 || plan.cluster > 0) return space;
  const int64_t units = args.q.size[0] / plan.pack * divide_up(args.q.size[1] * plan.pack, plan.block_heads);
  if (units > kCounters)
    fail("sparse attention on the GPU: {} tokens x {} heads are too many for a plan of {} splits", args.q.size[0],
         args.q.size[1], plan.splits);
  const auto align = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  space.mail_at = kCounters * sizeof(uint64_t);
  space.place_at = space.mail_at + align(sizeof(MailCount));
  space.place_bytes = size_t{kMostMailBlocks} * kMostMailBytes;
  space.zeroed = space.place_at + 2 * space.place_bytes;
  space.state_at = space.zeroed;
  if (plan.mail) {
    space.total = space.zeroed;
    return space;
  }
  const size_t parts = static_cast<size_t>(units) * static_cast<size_t>(plan.splits);
  space.partial_at = space.state_at + align(parts * static_cast<size_t>(plan.block_heads * 5 / 2) * sizeof(float));
  space.total = space.partial_at + parts * static_cast<size_t>(plan.block_heads) * kHeadDim * sizeof(uint16_t);
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
