#include "ops/index_select/select_plan.h"

#include <algorithm>
#include <cstdint>

namespace fathom::ops::index_select {

namespace {

constexpr int64_t kBlocksPerSm = 2;

}  // namespace

int64_t most_shared(const DeviceInfo& d) {
  return d.sm_count * kBlocksPerSm / 2;
}

int splits_for(const IndexSelectArgs& a, const DeviceInfo& d) {
  const int64_t tokens = std::max<int64_t>(1, a.q.size[0]), most = a.pages.size[1] * a.keys.page_rows;
  if (most <= a.topk) return 1;
  const int64_t wanted = (most + kChunkKeys / 2 - 1) / (kChunkKeys / 2);
  const int64_t room = std::max<int64_t>(1, d.sm_count * kBlocksPerSm / tokens);
  return static_cast<int>(std::min({wanted, room, int64_t{kMostSplits}}));
}

int few_splits(const IndexSelectArgs& a, const DeviceInfo& d) {
  constexpr int64_t kMost = 32;  // a tile for each warp
  const int64_t tokens = std::max<int64_t>(1, a.q.size[0]), most = a.pages.size[1] * a.keys.page_rows;
  const bool aligned = (reinterpret_cast<uintptr_t>(a.keys.data) | static_cast<uintptr_t>(a.keys.stride)) % 16 == 0;
  if (!aligned || most > kFewEntries || most <= a.topk || tokens > most_shared(d)) return 0;
  return static_cast<int>(std::clamp<int64_t>(d.sm_count * kBlocksPerSm / tokens, 1, kMost));
}

/// The exchange has the same place and size for every number of tokens: nothing else may be written there.
Workspace workspace_for(const IndexSelectArgs& a, const DeviceInfo& d) {
  Workspace w;
  const int splits = splits_for(a, d);
  const auto tokens = static_cast<size_t>(a.q.size[0]), parts = tokens * static_cast<size_t>(splits);
  w.counts_at = static_cast<size_t>(most_shared(d)) * sizeof(Exchange);
  if (few_splits(a, d) > 0) {
    w.total = w.counts_at + tokens * kFewEntries * sizeof(uint16_t);
    return w;
  }
  if (splits == 1) return {};
  w.candidates_at = (w.counts_at + parts * sizeof(uint32_t) + 255) / 256 * 256;
  w.total = w.candidates_at + parts * static_cast<size_t>(a.topk) * sizeof(Candidate);
  return w;
}

}  // namespace fathom::ops::index_select
