// What the selection kernel is launched with, and how its plan divides the entries.
#pragma once

#include <cstddef>

#include "ops/index_select/index_select.h"

namespace fathom::ops::index_select {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kWarpKeys = 32, kChunkKeys = kWarps * kWarpKeys;
inline constexpr int kWideRows = 16;  // of a page, which a warp of wide_scan.cuh takes at a time
inline constexpr int kMostHeads = 64, kMostTopk = 1024, kMostSplits = 512;
inline constexpr int kBufferKeys = 2048;
// Entries of a token up to which all keys are written (few_kernel.cuh); up to kFewEntries a thread of the last block
// holds them all.
inline constexpr int kFewEntries = 4096, kManyEntries = 16384;
// By wide_scan.cuh so many keys are written, and the largest of each 16, while all tokens together have at most
// kMostWritten.
inline constexpr int kWrittenEntries = kManyEntries * kWideRows;
inline constexpr int64_t kMostWritten = int64_t{1} << 22;

/// An entry that may be among the chosen ones.
struct Candidate {
  uint32_t key, entry;
};

/// Scratch of one token where several blocks share its entries. Zero at launch, and left so.
struct alignas(16) Exchange {
  uint32_t reached[kMostSplits];  // of each block: 1 + the key (plus one, 0: none) that `rank` of its candidates reach
  uint32_t written;               // blocks whose candidates are written
  uint32_t pad[3];
};

/// n / d for 0 <= n < 2^31 as a product: n * factor >> shift.
struct Divisor {
  uint64_t factor = 1;
  int32_t shift = 0;
};
Divisor divisor_of(int32_t d);

struct Params {
  IndexSelectArgs a;
  Divisor page_rows;  // wide_scan.cuh alone
  int32_t splits = 1;
  int32_t rank = 1;                 // a block tells the others which key so many of its candidates reach
  int64_t patience = 0;             // cycles that it waits for what they tell
  Exchange* exchange = nullptr;     // [T]
  uint32_t* counts = nullptr;       // [T][splits] candidates written
  Candidate* candidates = nullptr;  // [T][splits][topk]
  uint16_t* keys = nullptr;         // [T][keys_each] where a token sees at most so many; null: it is never used
  uint16_t* largest = nullptr;      // [T][keys_each / 16] the largest key of 16, by wide_scan.cuh
  int64_t keys_each = 0;
};

struct Workspace {
  size_t counts_at = 0, candidates_at = 0, keys_at = 0, largest_at = 0, total = 0;
  int64_t keys_each = 0;  // 0: no keys are written
};

/// Which kernel takes the entries: those of few_kernel.cuh alone (up to kFewEntries with little of a multiprocessor, so
/// that it finds a place beside others; up to kManyEntries), the stream alone, or the one that does both by warpgroups.
enum class Kernel { few, many, stream, wide };
/// Blocks that share a token's entries: from static bounds and the device alone. More than one for at most
/// most_shared() tokens, and not more than can be resident together: they wait for each other.
int splits_for(const IndexSelectArgs& a, const DeviceInfo& d, Kernel kernel);
/// `wide`: the variant may use warpgroups.
Kernel kernel_for(const IndexSelectArgs& a, const DeviceInfo& d, bool wide);
/// Half as many again as a block's share of k: most blocks have so many of the chosen ones or nearly.
int32_t rank_for(int32_t k, int splits);
/// Whether products by warpgroups take it and pay: heads, codes at multiples of 16 bytes, 16 rows in one page.
bool is_wide(const IndexSelectArgs& a);
int64_t most_shared(const DeviceInfo& d);
Workspace workspace_for(const IndexSelectArgs& a, const DeviceInfo& d, Kernel kernel);

}  // namespace fathom::ops::index_select
