// Fills a cache with numbers of the size that a model leaves there, for benchmarks at a context that nobody has
// computed.
#pragma once

#include "cache/cache.h"

namespace fathom {

/// Rows, entries, index keys and compressor states of all layers. Rows have channels near 1; the pages of a pool repeat
/// after kDifferentPages. The same bits on all ranks. `device` is rank 0's and stays the thread's.
void fill_cache(const Cache& cache, ops::ComputeDevice& device, uint64_t seed);
inline constexpr int64_t kDifferentPages = 64;

}  // namespace fathom
