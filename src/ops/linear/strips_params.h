// Shared memory and plan of the product kernel for 33 to 64 tokens and weights with few rows (strips_kernel.cuh,
// sm_90a).
//
// One block for each multiprocessor. A block has two strips of 64 rows of weights and one slice of K; its warpgroups
// have a strip each, and two teams of them take units of 128 columns in turn.
#pragma once

#include <optional>

#include "ops/linear/stream_params.h"

namespace fathom::ops::strips {

using stream::kUnitColumns, stream::Maps, stream::Work;

inline constexpr int kStripRows = 64, kTokens = 64;
inline constexpr int kBoxBytes = kStripRows * kUnitColumns;  // of a strip, or of all tokens
inline constexpr int kTiles = kTokens / 8;
inline constexpr int kStrips = 2, kTeams = 2;              // of a block
inline constexpr int kConsumers = 128 * kStrips * kTeams;  // threads
inline constexpr int kMine = kTiles / kTeams;              // tiles of tokens that a team adds in the end
inline constexpr int kBarriers = 256;                      // bytes
inline constexpr int kMostLog2Slices = 2, kMostSlices = 1 << kMostLog2Slices, kMostUnits = 64;
static_assert(kMine == kMostSlices);
/// A token's sums of a strip on their way out: bf16, rows of 8 tokens meet in no bank.
inline constexpr int kOutWords = kStripRows / 2 + 4;

struct Plan {
  int log2_slices = 0;  // of K
  int stages = 0;       // of a team
  int blocks = 0;       // along the rows
  size_t shared_bytes = 0;
  size_t sums_bytes = 0;  // of memory where slices meet

  int slices() const { return 1 << log2_slices; }
};

inline constexpr int kThreads = kConsumers + 32;
inline constexpr int kStageBytes = (kStrips + 1) * kBoxBytes;
/// Barriers, scales of x as fp32 [unit of the slice][token], scales of weights [strip][unit].
FATHOM_HOST_DEVICE constexpr int header_bytes(int units) {
  return (kBarriers + units * (kTokens + kStrips) * static_cast<int>(sizeof(float)) + 1023) / 1024 * 1024;
}
/// Sums on their way to the other team: fp32 [team][tile][thread].
inline constexpr int kMeetBytes = kStrips * kTokens * kStripRows * static_cast<int>(sizeof(float));

struct Params {
  stream::Params all;     // first_tile: the part's first strip
  float* sums = nullptr;  // [block][tile][slice][thread][4], zero at launch and left so
  int32_t strips = 0;     // of all parts
};

/// Null where this kernel does not pay: other numbers of tokens, or weights that leave multiprocessors idle. A block
/// may have to wait for those of the other slices, so all must be there at once.
inline std::optional<Plan> make_plan(int strips, int units, int64_t tokens, int processors) {
  constexpr int kStages = 4;
  if (tokens <= kTokens / 2 || tokens > kTokens) return {};
  Plan p;
  p.blocks = (strips + kStrips - 1) / kStrips;
  while (p.slices() < kMostSlices && p.blocks * 2 * p.slices() <= processors && 4 * p.slices() <= units)
    ++p.log2_slices;
  const int blocks = p.blocks * p.slices(), longest = longest_slice(units, p.log2_slices);
  if (blocks > processors || 4 * blocks < 3 * processors || longest > kMostUnits) return {};
  p.stages = std::min(kStages, (longest + kTeams - 1) / kTeams);
  const int leaving = kConsumers / 128 * 8 * kMine * kOutWords * static_cast<int>(sizeof(uint32_t));
  p.shared_bytes =
      static_cast<size_t>(header_bytes(longest) + std::max(kTeams * p.stages * kStageBytes, kMeetBytes + leaving));
  if (p.log2_slices > 0) p.sums_bytes = static_cast<size_t>(blocks) * kMine * kConsumers * 4 * sizeof(float);
  return p;
}

/// Boxes and parameters as this kernel wants them.
template <typename Describe>
Maps describe_strips(Work work, const Describe& describe) {
  work.x.box_rows = kTokens;
  for (int32_t i = 0; i < work.params.parts; ++i) work.weights[i].box_rows = kStripRows;
  return stream::describe_weights(work, describe);
}
inline int strips_of(const stream::Params& p) {
  int strips = 0;
  for (int32_t i = 0; i < p.parts; ++i) strips += (p.part[i].rows + kStripRows - 1) / kStripRows;
  return strips;
}
inline Params params_for(const Work& work, const Plan& plan, void* sums) {
  Params p;
  p.all = work.params, p.sums = static_cast<float*>(sums);
  for (int32_t i = 0; i < p.all.parts; ++i) {
    p.all.part[i].first_tile = p.strips;
    p.strips += (p.all.part[i].rows + kStripRows - 1) / kStripRows;
  }
  p.all.log2_slices = plan.log2_slices, p.all.stages = plan.stages;
  return p;
}

/// Bytes of memory where slices meet: the same for any number of tokens. Only some have slices, but the first step of
/// so many must not have to make memory: recorded steps would be dropped, and other ranks may be waiting for this one.
inline size_t workspace_bytes(const Work& work, int processors) {
  const auto plan = make_plan(strips_of(work.params), work.params.units, kTokens, processors);
  return plan ? plan->sums_bytes : 0;
}

/// Launches; throws Error when CUDA refuses. `stream` is a cudaStream_t.
void launch_strips(const Params& p, const Maps& maps, const Plan& plan, void* stream);

}  // namespace fathom::ops::strips
