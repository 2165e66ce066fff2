#include "cache/fill.h"

#include <algorithm>
#include <vector>

#include "ops/fill/fill.h"
#include "ops/fill/fill_word.h"

namespace fathom {
namespace {

using ops::fill_words::random_word;

constexpr uint8_t kScaleOfOne = 127;

/// One page of V4 rows: codes as FillKind::e4m3 draws them, scales of 1, RoPE channels between -1 and 1.
void draw_row(const ops::KvPool& pool, int64_t row, uint64_t seed) {
  std::byte* data = pool.row_data(ops::RowFormat::v4, row);
  for (int i = 0; i < ops::kNopeDim; ++i)
    data[i] = static_cast<std::byte>((random_word(seed, static_cast<uint64_t>(i)) & 0x9F) | 0x20);
  auto* rope = reinterpret_cast<bf16*>(data + ops::kNopeDim);
  for (int i = 0; i < ops::kRopeDim; ++i) {
    const auto random = static_cast<int16_t>(random_word(seed, static_cast<uint64_t>(1000 + i)));
    rope[i] = to_bf16(static_cast<float>(random) / 32768.0f);
  }
  std::fill_n(pool.row_scales(row), ops::kV4ScaleBytes, std::byte{kScaleOfOne});
}

void draw_index_row(const ops::IndexPool& pool, int64_t row, uint64_t seed) {
  std::byte* codes = pool.row_codes(row);
  for (int i = 0; i < ops::kIndexCodeBytes; ++i)
    codes[i] = static_cast<std::byte>(random_word(seed, static_cast<uint64_t>(i)));
  std::fill_n(pool.row_scales(row), ops::kIndexScaleBytes, std::byte{kScaleOfOne - 2});
}

/// Draws the first pages of a pool on the host and repeats them over all. `draw(pool, row, seed)`.
template <typename Pool, typename Draw>
void fill_pool(const Pool& pool, int32_t pages, uint64_t seed, ops::ComputeDevice& device, const Draw& draw) {
  if (!pool.data) return;
  const int64_t different = std::min<int64_t>(pages, kDifferentPages);
  std::vector<std::byte> host(static_cast<size_t>(different * pool.stride));
  Pool on_host = pool;
  on_host.data = host.data();
  for (int64_t row = 0; row < different * pool.page_rows; ++row)
    draw(on_host, row, random_word(seed, static_cast<uint64_t>(row)));
  device.upload(pool.data, host.data(), host.size());
  for (int64_t page = different; page < pages; page += different)
    device.copy(pool.data + page * pool.stride, pool.data,
                static_cast<size_t>(std::min(different, pages - page) * pool.stride));
  device.synchronize("filling the cache");
}

void fill_ring(const View<float, 3>& ring, uint64_t seed, ops::ComputeDevice& device) {
  if (!ring.data) return;
  ops::FillArgs a;
  a.to = reinterpret_cast<std::byte*>(ring.data), a.bytes = ring.count() * static_cast<int64_t>(sizeof(float));
  a.kind = ops::FillKind::f32, a.seed = seed, a.spread = 1;
  ops::fill(a, device);
}

}  // namespace

void fill_cache(const Cache& cache, ops::ComputeDevice& own_device, uint64_t seed) {
  if (own_device.only_counts()) return;
  for (int rank = 0; rank < cache.ranks(); ++rank) {
    ops::ComputeDevice& device = cache.device(rank);
    device.bind();
    uint64_t layer = 0;
    for (const LayerCache& l : cache.layers(rank)) {
      const uint64_t own = random_word(seed, ++layer);
      fill_pool(l.window, cache.windows().total(), own + 1, device, draw_row);
      fill_pool(l.entries, cache.entries().total(), own + 2, device, draw_row);
      fill_pool(l.index, cache.entries().total(), own + 3, device, draw_index_row);
      fill_ring(l.state_k, own + 4, device), fill_ring(l.state_g, own + 5, device);
      fill_ring(l.index_state_k, own + 6, device), fill_ring(l.index_state_g, own + 7, device);
    }
    device.synchronize("filling the cache");
  }
  own_device.bind();
}

}  // namespace fathom
