#include "ops/together/products_plan.h"

#include <algorithm>

#include "ops/compress/pooling.h"
#include "ops/linear/stream_params.h"

namespace fathom::ops::together {
namespace {

using gemm::Math;

constexpr Math kMath[kProducts] = {Math::e4m3_wide, Math::bf16_wide, Math::bf16_wide};
constexpr int kMostResident = 3, kMostTokens = 8;
constexpr int kMostQueryTokens = 4;  // with more, linear_fp8 takes a faster kernel

/// Those that linear_fp8 takes on sm_90, whatever its kernel.
int slices_of(const LinearFp8Args& a, const gemm::Params& p) {
  return stream::make_plan(stream::Input::e4m3, stream::pack(a).row_tiles, p.units, p.tokens).log2_slices;
}

/// The plan of one product with at most `ahead` units under way; false where it cannot take clusters of 8.
bool plan_product(Math math, const gemm::Params& p, int ahead, const DeviceInfo& device, std::optional<int> log2_slices,
                  gemm::Plan& plan) {
  plan.log2_slices = gemm::make_plan(math, p.groups, p.units, p.tokens, device, true, log2_slices).log2_slices;
  if (plan.slices() < kProductCluster) return false;
  plan.cluster = kProductCluster, plan.slice_warps = plan.slices() / kProductCluster;
  plan.group_warps = kProductWarps / plan.slice_warps, plan.tiles = 1;
  plan.chunk_units = longest_slice(p.units, plan.log2_slices);
  plan.ahead = std::min(ahead, plan.chunk_units), plan.stages = std::min(ahead + 1, plan.chunk_units);
  plan.early = true;
  return plan.group_warps >= gemm::least_group_warps(math);
}

/// Moves a product to rows of the grid from `row` on.
void move_down(gemm::Params& p, int row) {
  const int groups = row << p.log2_group_warps;
  for (int32_t i = 0; i < p.parts; ++i) p.part[i].first_group += groups;
  p.groups += groups;
}

}  // namespace

Products lay_out(const InputProductsArgs& a, const DeviceInfo& device, bool exact) {
  Products out;
  const gemm::Params packed[kProducts] = {gemm::pack(a.latents), gemm::pack(a.compressor),
                                          a.weights.w.data ? gemm::pack(a.weights) : gemm::Params{}};
  ProductsPlan& plan = out.plan;
  const int tokens = packed[0].tokens;
  if (tokens == 0 || tokens > kMostTokens || packed[0].groups == 0 || packed[1].groups == 0) return out;
  std::optional<int> slices[kProducts];
  if (exact) slices[0] = slices_of(a.latents, packed[0]);
  for (int ahead = gemm::kMostAhead; ahead >= gemm::kLeastAhead && !plan.fits; --ahead) {
    plan.shared_bytes = 0;
    int row = 0;
    for (int i = 0; i < kProducts; ++i) {
      gemm::Params& p = out.of[i] = packed[i];
      plan.rows[i] = row;
      if (p.groups == 0) continue;
      gemm::Plan product;
      if (p.tokens != tokens || !plan_product(kMath[i], p, ahead, device, slices[i], product)) return out;
      gemm::set_plan(p, product);
      plan.shared_bytes = std::max(plan.shared_bytes, gemm::shared_for(kMath[i], product, product.chunk_units));
      const int rows = (p.groups + product.group_warps - 1) / product.group_warps;
      move_down(p, row);
      row += rows;
    }
    plan.rows[kProducts] = row;
    const int clusters = std::max(1, device.sm_count / kProductCluster - 1);  // that surely run at once, a block each
    const int resident = (row + clusters - 1) / clusters;
    if (resident > kMostResident) return out;
    plan.fits = plan.shared_bytes <= static_cast<size_t>(device.shared_bytes) / static_cast<size_t>(resident) - 1024;
  }
  return out;
}

QueryProducts lay_out(const QueryProductsArgs& a, const DeviceInfo& device) {
  QueryProducts out;
  out.queries = gemm::pack(a.queries), out.main = a.main, out.index = a.index;
  gemm::Params& p = out.queries;
  if (p.tokens == 0 || p.tokens > kMostQueryTokens || p.groups == 0) return out;
  gemm::Plan plan =
      gemm::make_plan(Math::e4m3_wide, p.groups, p.units, p.tokens, device, true, slices_of(a.queries, p));
  if (plan.cluster != 1 || plan.tiles != 1 || plan.threads() != 32 * kProductWarps) return out;
  plan.early = true;
  gemm::set_plan(p, plan);
  const int rows = (p.groups + plan.group_warps - 1) / plan.group_warps;
  out.compressions =
      static_cast<int32_t>((a.index.k.data ? 2 : 1) * (a.main.entries.size[0] + a.main.segments.size[0]));
  move_down(p, out.compressions);
  out.rows = out.compressions + rows;
  out.shared_bytes = std::max(plan.shared_bytes, compress::kWholeBytes);
  // Those that find no place at once begin when others end, and take as long again.
  const auto most = static_cast<int64_t>((static_cast<size_t>(device.shared_bytes) + 1024) / (out.shared_bytes + 1024));
  out.fits = out.rows <= device.sm_count * std::min<int64_t>(most, query_residents(a.main.ratio));
  return out;
}

}  // namespace fathom::ops::together
