// Plans of the CUDA decode kernels: made on the host from static shapes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/sparse_attention/decode_layout.h"
#include "ops/sparse_attention/decode_params.h"
#include "ops/sparse_attention/decode_plan.h"

namespace fathom::ops::sparse_decode {
namespace {

SparseAttentionArgs shapes(int64_t tokens, int64_t heads, int64_t rows, RowFormat format = RowFormat::v4) {
  static const int32_t index = 0;
  SparseAttentionArgs a;
  a.q.size[0] = tokens, a.q.size[1] = heads, a.q.size[2] = kHeadDim;
  a.format = format;
  a.extra.index = View<const int32_t, 2>(&index, tokens, rows);
  return a;
}

constexpr DeviceInfo kH200{Backend::cuda, 90, 132, 227 << 10, 60 << 20};
constexpr DeviceInfo kRtx{Backend::cuda, 120, 188, 99 << 10, 128 << 20};

TEST(SparseDecodePlan, SplitsFewTokensAndLeavesManyWhole) {
  EXPECT_GE(choose_plan(shapes(1, 64, 640), kH200, false).splits, 10);
  EXPECT_EQ(choose_plan(shapes(128, 64, 640), kH200, false).splits, 1);
  EXPECT_TRUE(choose_plan(shapes(64, 64, 640), kH200, true).wide);
  EXPECT_FALSE(choose_plan(shapes(64, 64, 640), kH200, false).wide);
  EXPECT_FALSE(choose_plan(shapes(64, 64, 640, RowFormat::bf16), kH200, true).wide);
}

TEST(SparseDecodePlan, GivesBlocksOfTheKernelForFewRowsNoMoreTilesThanItTakes) {
  for (const DeviceInfo& device : {kH200, kRtx})
    for (int64_t tokens : {1, 2, 4, 8, 16, 48})
      for (int64_t rows : {1, 128, 640, 1152, 8320}) {
        const Plan plan = choose_plan(shapes(tokens, 64, rows), device, device.compute_capability == 90);
        if (!plan.burst) continue;
        const int64_t tiles = (rows + 15) / 16;
        EXPECT_LE((tiles + plan.splits - 1) / plan.splits, plan.burst);
        if (plan.cluster) {
          EXPECT_EQ(plan.cluster, plan.splits);
        }
        if (device.shared_bytes < 140 << 10) {
          EXPECT_FALSE(plan.block_heads == 64 && plan.burst > 3);
        }
      }
  EXPECT_GT(choose_plan(shapes(1, 64, 640), kH200, true).cluster, 0);
  EXPECT_EQ(choose_plan(shapes(1, 64, 640), kH200, false).cluster, 0);
}

TEST(SparseDecodePlan, TakesTheWarpgroupKernelForFewRowsWhereBlocksAreFull) {
  const Plan plan = choose_plan(shapes(16, 64, 640), kH200, true);
  EXPECT_TRUE(plan.wide && plan.burst > 0);
  EXPECT_LE(16 * plan.splits, kH200.sm_count);
  EXPECT_FALSE(choose_plan(shapes(16, 64, 640), kH200, false).wide);
  EXPECT_FALSE(choose_plan(shapes(16, 64, 640, RowFormat::bf16), kH200, true).wide);
}

TEST(SparseDecodePlan, TakesTheTokensOfARequestTogetherWhereTheyFillABlock) {
  alignas(64) static bf16 memory[48 * 8 * kHeadDim];
  SparseAttentionArgs a = shapes(48, 8, 1152);
  a.q = View<const bf16, 3>(memory, int64_t{48}, int64_t{8}, int64_t{kHeadDim});
  a.queries_per_request = 6;
  for (const DeviceInfo& device : {kH200, kRtx}) {
    EXPECT_EQ(choose_plan(a, device, false).pack, 6);
    EXPECT_EQ(choose_exact_plan(a, device).pack, 1);
  }
  a.queries_per_request = 5;  // does not divide the tokens
  EXPECT_EQ(choose_plan(a, kH200, true).pack, 1);
  a.queries_per_request = 6, a.q.stride[0] += 8;  // gaps between tokens
  EXPECT_EQ(choose_plan(a, kH200, true).pack, 1);
  SparseAttentionArgs whole = shapes(48, 64, 1152);  // a block is full without
  whole.queries_per_request = 6;
  EXPECT_EQ(choose_plan(whole, kH200, true).pack, 1);
}

TEST(SparseDecodePlan, TakesNoClusterForCodesOrOnASliceOfAGpu) {
  alignas(64) static e4m3 codes[64 * kHeadDim];
  SparseAttentionArgs a = shapes(1, 64, 640);
  a.out_codes = View<e4m3, 3>(codes, int64_t{1}, int64_t{64}, int64_t{kHeadDim});
  EXPECT_EQ(choose_plan(a, kH200, true).cluster, 0);
  DeviceInfo slice = kH200;
  slice.sm_count = 60;
  EXPECT_EQ(choose_plan(shapes(1, 64, 640), slice, true).cluster, 0);
}

TEST(SparseDecodePlan, DividesSlotsByPagesWithoutDivision) {
  for (int32_t page_rows : {1, 2, 3, 7, 64, 255, 256, 1000003, (1 << 30) + 1, 2147483647}) {
    const PageDivision pages = PageDivision::by(page_rows);
    for (int64_t slot : {0, 1, 2, 3, 1000, 1 << 20, 2147483646, 2147483647})
      for (int64_t near : {slot, slot / page_rows * page_rows, slot / page_rows * page_rows + page_rows - 1})
        if (near <= 2147483647) {
          ASSERT_EQ(pages.page_of(static_cast<int32_t>(near)), near / page_rows);
        }
  }
}

TEST(SparseDecodePlan, ExactPlanIgnoresTheNumberOfTokens) {
  for (const DeviceInfo& device : {kH200, kRtx})
    for (int64_t heads : {4, 16, 24, 64, 128}) {
      const Plan alone = choose_exact_plan(shapes(1, heads, 1152), device);
      for (int64_t tokens : {2, 7, 64, 512}) {
        const Plan batch = choose_exact_plan(shapes(tokens, heads, 1152), device);
        EXPECT_EQ(batch.block_heads, alone.block_heads);
        EXPECT_EQ(batch.splits, alone.splits);
        EXPECT_EQ(batch.wide, alone.wide);
      }
    }
}

TEST(SparseDecodePlan, WaitsOnlyWhenAllBlocksAreResident) {
  for (const DeviceInfo& device : {kH200, kRtx})
    for (int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 128, 300}) {
      const Plan plan = choose_plan(shapes(tokens, 64, 640), device, false);
      const int64_t blocks = tokens * ((64 + plan.block_heads - 1) / plan.block_heads) * plan.splits;
      const int64_t per_sm = plan.block_heads == 16 && device.shared_bytes >= 200 << 10 ? 2 : 1;
      if (plan.patience) {
        EXPECT_LE(blocks, per_sm * device.sm_count);
      }
    }
}

TEST(SparseDecodePlan, MailsOnlyWhenAllBlocksAreResident) {
  for (const DeviceInfo& device : {kH200, kRtx})
    for (int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 128, 300})
      for (int64_t rows : {128, 640, 1152, 8320}) {
        const auto args = shapes(tokens, 64, rows);
        const Plan plan = choose_plan(args, device, device.compute_capability == 90);
        if (!plan.mail) continue;
        EXPECT_GT(plan.patience, 0);
        EXPECT_LE(plan.splits, kMostMailSplits);
        const int64_t blocks = tokens * ((64 + plan.block_heads - 1) / plan.block_heads) * plan.splits;
        EXPECT_LE(blocks * plan.block_heads, 64 * kMostMailBlocks);
        EXPECT_EQ(workspace_for(args, plan).zeroed, workspace_for(args, plan).total);
      }
  EXPECT_TRUE(choose_plan(shapes(8, 64, 640), kH200, true).mail);
  EXPECT_TRUE(choose_plan(shapes(16, 64, 640), kH200, true).mail);
  EXPECT_FALSE(choose_exact_plan(shapes(8, 64, 640), kH200).mail);
  EXPECT_EQ(choose_plan(shapes(6, 8, 640), kH200, true).cluster, 16);
  EXPECT_EQ(choose_plan(shapes(2, 64, 640), kH200, true).cluster, 8);
}

TEST(SparseDecodePlan, CountersLieAtTheSamePlaceForEveryShape) {
  size_t zeroed = 0;
  for (int64_t tokens : {1, 3, 20}) {
    const auto args = shapes(tokens, 64, 640);
    const Workspace space = workspace_for(args, {32, 4});
    if (zeroed) {
      EXPECT_EQ(space.zeroed, zeroed);
    }
    zeroed = space.zeroed;
    EXPECT_GE(space.state_at, space.zeroed);
    EXPECT_GE(space.total, space.partial_at + static_cast<size_t>(tokens) * 2 * 4 * 32 * kHeadDim * 2);
  }
  EXPECT_EQ(workspace_for(shapes(128, 64, 640), {64, 1}).total, 0u);
  EXPECT_THROW(workspace_for(shapes(60000, 64, 640), {16, 2}), Error);
  EXPECT_EQ(choose_plan(shapes(60000, 64, 640), kRtx, false).splits, 1);
}

TEST(SparseDecodePlan, RefusesShapesThatTheKernelsCannotRead) {
  alignas(64) static bf16 q[2 * 8 * kHeadDim], out[2 * 8 * kHeadDim];
  SparseAttentionArgs a;
  a.q = View<const bf16, 3>(q, int64_t{2}, int64_t{8}, int64_t{kHeadDim});
  a.out = View<bf16, 3>(out, int64_t{2}, int64_t{8}, int64_t{kHeadDim});
  EXPECT_TRUE(shapes_fit(a));
  a.q.stride[1] = kHeadDim + 4;  // rows would not start at multiples of 16 bytes
  EXPECT_FALSE(shapes_fit(a));
  a.q.stride[1] = kHeadDim;
  a.out.data = out + 1;
  EXPECT_FALSE(shapes_fit(a));
  a.out.data = nullptr;  // neither output nor codes
  EXPECT_FALSE(shapes_fit(a));
}

TEST(SparseDecodePlan, FillsHalfOfAWarpgroupsBlockWhereRowsAreMany) {
  EXPECT_TRUE(choose_plan(shapes(64, 32, 1152), kH200, true).wide);
  EXPECT_FALSE(choose_plan(shapes(64, 32, 256), kH200, true).wide);
  EXPECT_FALSE(choose_plan(shapes(64, 16, 1152), kH200, true).wide);
  EXPECT_FALSE(choose_plan(shapes(64, 32, 1152), kH200, false).wide);
}

}  // namespace
}  // namespace fathom::ops::sparse_decode
