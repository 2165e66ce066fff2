#include "ops/index_select/select_plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace fathom::ops::index_select {

namespace {

int64_t entries_bound(const IndexSelectArgs& a) {
  return a.pages.size[1] * a.keys.page_rows;
}

/// Blocks of a multiprocessor: what the launch bounds in index_select.cu say.
int64_t resident(const DeviceInfo& d, Kernel kernel) {
  const bool one = d.compute_capability == 80 || d.compute_capability >= 90;
  return kernel == Kernel::stream && one ? 1 : 2;
}

bool is_aligned(const IndexSelectArgs& a) {
  return (reinterpret_cast<uintptr_t>(a.keys.data) | static_cast<uintptr_t>(a.keys.stride)) % 16 == 0;
}

}  // namespace

Divisor divisor_of(int32_t d) {
  const int log2 = std::bit_width(static_cast<uint32_t>(d) - 1);  // 2^log2 >= d
  return {((uint64_t{1} << (31 + log2)) + static_cast<uint64_t>(d) - 1) / static_cast<uint64_t>(d), 31 + log2};
}

bool is_wide(const IndexSelectArgs& a) {
  return is_aligned(a) && a.q.size[1] > kMostHeads / 2 && a.keys.page_rows % kWideRows == 0;
}

int64_t most_shared(const DeviceInfo& d) {
  return d.sm_count;
}

Kernel kernel_for(const IndexSelectArgs& a, const DeviceInfo& d, bool wide) {
  constexpr int64_t kFewTokens = 8;  // more work than latency from there on
  const int64_t tokens = a.q.size[0], most = entries_bound(a);
  const bool writes = is_aligned(a) && tokens <= most_shared(d);
  wide = wide && is_wide(a);
  if (writes && most <= kFewEntries && (!wide || tokens <= kFewTokens)) return Kernel::few;
  if (wide) return Kernel::wide;
  return writes && most <= kManyEntries ? Kernel::many : Kernel::stream;
}

int splits_for(const IndexSelectArgs& a, const DeviceInfo& d, Kernel kernel) {
  const int64_t tokens = std::max<int64_t>(1, a.q.size[0]), most = entries_bound(a);
  if (most <= a.topk || tokens > most_shared(d)) return 1;
  // Fewer blocks have less to tell each other.
  const int64_t least = most > kManyEntries ? kChunkKeys : kChunkKeys / 2, wanted = (most + least - 1) / least;
  const int64_t room = std::max<int64_t>(1, d.sm_count * resident(d, kernel) / tokens);
  return static_cast<int>(std::min({wanted, room, int64_t{kMostSplits}}));
}

int32_t rank_for(int32_t k, int splits) {
  return static_cast<int32_t>((3 * int64_t{k} + 2 * int64_t{splits} - 1) / (2 * int64_t{splits}));
}

/// The exchange has the same place and size for every number of tokens: nothing else may be written there.
Workspace workspace_for(const IndexSelectArgs& a, const DeviceInfo& d, Kernel kernel) {
  Workspace w;
  const int64_t tokens = a.q.size[0], most = entries_bound(a);
  if (most <= a.topk || tokens > most_shared(d)) return w;
  const int64_t splits = splits_for(a, d, kernel), parts = splits > 1 ? tokens * splits : 0;
  w.counts_at = static_cast<size_t>(most_shared(d)) * sizeof(Exchange);
  w.candidates_at = (w.counts_at + static_cast<size_t>(parts) * sizeof(uint32_t) + 255) / 256 * 256;
  w.keys_at = (w.candidates_at + static_cast<size_t>(parts * a.topk) * sizeof(Candidate) + 255) / 256 * 256;
  if (kernel != Kernel::stream) w.keys_each = std::min<int64_t>(kManyEntries, (most + 127) / 128 * 128);
  int64_t room = tokens * w.keys_each;
  if (kernel == Kernel::wide && most > kManyEntries) {
    const int64_t each = std::min<int64_t>(kWrittenEntries, (most + 127) / 128 * 128);
    if (tokens * each <= kMostWritten) w.keys_each = each;
    room = kMostWritten;  // the same for every number of tokens, so that no step wants more than the largest
  }
  w.largest_at = w.keys_at + static_cast<size_t>(tokens * w.keys_each) * sizeof(uint16_t);
  w.total = w.keys_at + static_cast<size_t>(room + room / kWideRows) * sizeof(uint16_t);
  return w;
}

}  // namespace fathom::ops::index_select
