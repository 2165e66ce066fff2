// What the selection kernel is launched with, and how its plan divides the entries.
#pragma once

#include <cstddef>

#include "ops/index_select/index_select.h"

namespace fathom::ops::index_select {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kWarpKeys = 32, kChunkKeys = kWarps * kWarpKeys;
inline constexpr int kMostHeads = 64, kMostTopk = 1024, kMostSplits = 512;
inline constexpr int kBufferKeys = 2048;
inline constexpr int kFewEntries = 4096;  // of a token, up to which there is a kernel of its own (few_kernel.cuh)
/// A key is 16 bits of score in rising order. Its upper 11 bits are its bin, the lower 5 its place in the bin.
inline constexpr int kFineBits = 5, kFine = 1 << kFineBits, kBins = 1 << (16 - kFineBits);

/// An entry that may be among the chosen ones.
struct Candidate {
  uint32_t key, entry;
};

/// Scratch of one token where several blocks share its entries. Zero at launch, and left so.
struct alignas(16) Exchange {
  uint32_t bins[kBins];  // candidates by bin, of the blocks that have counted theirs
  uint32_t counted;      // blocks that have
  uint32_t written;      // blocks whose candidates are written
  uint32_t pad[2];
};

struct Params {
  IndexSelectArgs a;
  int32_t splits = 1;
  int64_t patience = 0;             // cycles that a block waits for the others' counts
  Exchange* exchange = nullptr;     // [T]
  uint32_t* counts = nullptr;       // [T][splits] candidates written
  Candidate* candidates = nullptr;  // [T][splits][topk]
  uint16_t* scores = nullptr;       // [T][kFewEntries], few_kernel.cuh alone
};

struct Workspace {
  size_t counts_at = 0, candidates_at = 0, total = 0;  // scores lie where counts begin
};

/// Blocks that share a token's entries: from static bounds and the device alone. More than one for at most
/// most_shared() tokens.
int splits_for(const IndexSelectArgs& a, const DeviceInfo& d);
/// The same for the kernel of few entries; 0: it does not take them.
int few_splits(const IndexSelectArgs& a, const DeviceInfo& d);
int64_t most_shared(const DeviceInfo& d);
Workspace workspace_for(const IndexSelectArgs& a, const DeviceInfo& d);

}  // namespace fathom::ops::index_select
