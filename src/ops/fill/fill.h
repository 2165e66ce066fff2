// Memory filled from a counter: every 8-byte word is a function of (seed, its number) alone, so that any device gives
// the same bits in any order. For weights of models without a checkpoint and for caches of benchmarks.
#pragma once

#include <cstddef>

#include "ops/op.h"

namespace fathom::ops {

enum class FillKind : int32_t {
  bytes,     // evenly drawn bytes: packed e2m1 codes
  e4m3,      // codes of either sign from 0.125 to 1.875, root mean square kFillE4m3Rms; never NaN
  constant,  // every byte is `byte`: e8m0 and e4m3 scales
  bf16,      // even in [center - spread, center + spread)
  f32,       // the same
  ids,       // int32 [rows, chosen]: each row `chosen` different ids below `ids`
};

inline constexpr double kFillE4m3Rms = 0.8447, kFillE2m1Rms = 2.9262;

struct FillArgs {
  std::byte* to = nullptr;  // a multiple of 8
  int64_t bytes = 0;
  // Part of a larger fill: its word number `first` is the first one here, and the numbers of rows of `row` words begin
  // `pitch` words apart; row 0: all words lie in one row.
  int64_t first = 0, row = 0, pitch = 0;
  FillKind kind = FillKind::bytes;
  uint64_t seed = 0;
  uint8_t byte = 0;
  float center = 0, spread = 0;
  int32_t ids = 0, chosen = 0;
};

Variants<FillArgs> fill_variants();

class ComputeDevice;
/// Fills memory of the device, in its stream's order. Does nothing on a device that only counts.
void fill(const FillArgs& args, ComputeDevice& device);

}  // namespace fathom::ops
