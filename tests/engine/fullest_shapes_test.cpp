// Scratch memory of ops whose blocks share tokens: shapes that are run beforehand want as much as any other.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/batch_memory.h"
#include "ops/index_select/select_plan.h"
#include "ops/sparse_attention/decode_plan.h"

namespace fathom {
namespace {

using ops::DeviceInfo;

constexpr DeviceInfo kH200{ops::Backend::cuda, 90, 132, 227 << 10, 60 << 20};
constexpr DeviceInfo kRtx{ops::Backend::cuda, 120, 188, 99 << 10, 128 << 20};

struct Bytes {
  size_t attention = 0, selection = 0;
  void raise(const Bytes& to) {
    attention = std::max(attention, to.attention), selection = std::max(selection, to.selection);
  }
};

/// Of the three kinds of layer of a rank with so many heads.
Bytes bytes_of(const BatchShape& shape, int64_t heads, const DeviceInfo& device) {
  alignas(16) static std::byte memory[16];
  const bool sm90 = device.compute_capability == 90;
  Bytes bytes;
  for (const int64_t extra : {int64_t{0}, int64_t{512}, shape.entries128}) {
    const auto* index = reinterpret_cast<const int32_t*>(memory);
    ops::SparseAttentionArgs a;
    a.q.size[0] = shape.tokens, a.q.size[1] = heads, a.q.size[2] = ops::kHeadDim;
    a.window.index = View<const int32_t, 2>(index, shape.tokens, 128);
    if (extra > 0) a.extra.index = View<const int32_t, 2>(index, shape.tokens, extra);
    const auto plan = ops::sparse_decode::choose_plan(a, device, sm90);
    bytes.raise({ops::sparse_decode::workspace_for(a, plan).total, 0});
  }
  ops::IndexSelectArgs a;
  a.q.size[0] = shape.tokens, a.q.size[1] = 64, a.topk = 512;
  a.keys.data = memory, a.keys.page_rows = 64, a.keys.stride = 64 * 144, a.pages.size[1] = shape.pages;
  const auto kernel = ops::index_select::kernel_for(a, device, sm90);
  bytes.raise({0, ops::index_select::workspace_for(a, device, kernel).total});
  return bytes;
}

TEST(FullestShapes, WantAsMuchScratchMemoryAsAnyOther) {
  for (const DeviceInfo& device : {kH200, kRtx})
    for (const auto& of :
         {std::pair{2048, 64}, {2048, 32}, {2048, 8}, {136, 64}, {100, 64}, {40, 64}, {40, 8}, {9, 64}})
      for (const int64_t context : {8192, 65536, 1 << 17, 1 << 20}) {
        const int64_t most = of.first, heads = of.second, entries128 = context / 128 + 1, pages = context / 256 + 1;
        const auto bytes = [&](int64_t tokens, int64_t width) {
          return bytes_of({tokens, width, std::min(2 * width, entries128)}, heads, device);
        };
        Bytes ready = bytes(most, pages);
        for (const BatchShape& shape : fullest_shapes(most, context, device.sm_count))
          ready.raise(bytes_of(shape, heads, device));
        for (int64_t tokens = 1; tokens < most; tokens += tokens < 400 ? 1 : 100)
          for (int64_t width = pages; width > 0; width /= 4) {
            const Bytes wanted = bytes(tokens, width);
            EXPECT_LE(wanted.attention, ready.attention)
                << tokens << " of " << most << " tokens, " << width << " pages";
            EXPECT_LE(wanted.selection, ready.selection)
                << tokens << " of " << most << " tokens, " << width << " pages";
          }
      }
}

}  // namespace
}  // namespace fathom
