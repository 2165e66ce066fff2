#include "ops/index_select/select_plan.h"

#include <algorithm>

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

/// The exchange has the same place and size for every number of tokens: nothing else may be written there.
Workspace workspace_for(const IndexSelectArgs& a, const DeviceInfo& d) {
  Workspace w;
  const int splits = splits_for(a, d);
  if (splits == 1) return w;
  const auto tokens = static_cast<size_t>(a.q.size[0]), parts = tokens * static_cast<size_t>(splits);
  w.counts_at = static_cast<size_t>(most_shared(d)) * sizeof(Exchange);
  w.candidates_at = (w.counts_at + parts * sizeof(uint32_t) + 255) / 256 * 256;
  w.total = w.candidates_at + parts * static_cast<size_t>(a.topk) * sizeof(Candidate);
  return w;
}

}  // namespace fathom::ops::index_select
