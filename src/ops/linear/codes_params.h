// Shared memory and plan of the streaming product kernel for codes as they are (codes_kernel.cuh, sm_90a).
#pragma once

#include "ops/linear/stream_params.h"

namespace fathom::ops::stream {

/// Warps that multiply; one more asks for boxes.
constexpr int codes_consumers(int tiles) {
  return tiles == 8 ? 2 * kConsumers : kConsumers;
}
constexpr int codes_threads(int tiles) {
  return 32 * (codes_consumers(tiles) + 1);
}
inline constexpr int kCodesRowBytes = kTileRows * kUnitColumns;  // of a stage: the weights
inline constexpr int kMostCodesStages = 8, kMostCodesUnits = 64;
inline constexpr int kCodesBarriers = 256;  // bytes
static_assert(kCodesBarriers >= (1 + 2 * kMostCodesStages) * 8);

constexpr int codes_stage_bytes(int tiles) {
  return kCodesRowBytes + tokens_of(tiles) * kUnitColumns;
}
/// Barriers and factors.
FATHOM_HOST_DEVICE constexpr int codes_header(int tiles, int units, int log2_slices) {
  return (kCodesBarriers + longest_slice(units, log2_slices) * 8 * tiles * static_cast<int>(sizeof(float)) + 1023) /
         1024 * 1024;
}

/// Multiprocessors of the GPUs that this is for.
inline constexpr int kCodesProcessors = 132;

/// As many slices as keep memory busy, twice as many for few tokens whose slices stay long. Unlike those of make_plan
/// they depend on the number of tokens.
inline void divide_codes(Plan& p, int units) {
  const auto blocks = [&] { return static_cast<int64_t>(p.row_tiles) * p.token_tiles << p.log2_slices; };
  p.log2_slices = 0;
  while (1 << p.log2_slices < kMaxSlices && 2 << p.log2_slices <= units) {
    const int next = units >> (p.log2_slices + 1);
    const bool idle = blocks() < kBlocksWanted || (p.tiles <= 2 && next >= 8 && blocks() < 2 * kBlocksWanted);
    if (!idle && longest_slice(units, p.log2_slices) <= kMostCodesUnits) break;
    ++p.log2_slices;
  }
}

/// Stages so that all blocks of up to three for each multiprocessor are there at once; two with 64 tokens (registers).
/// Clusters need more room than their blocks.
inline void fit_codes(Plan& p, int units) {
  const int64_t blocks = static_cast<int64_t>(p.row_tiles) * p.token_tiles << p.log2_slices;
  const int64_t each = (blocks + kCodesProcessors - 1) / kCodesProcessors + (p.cluster() > 1 ? 1 : 0);
  const int room = (p.tiles == 8 || each <= 2 ? 113 : 75) * 1024 - codes_header(p.tiles, units, p.log2_slices);
  p.stages = std::min({kMostCodesStages, room / codes_stage_bytes(p.tiles), longest_slice(units, p.log2_slices)});
  const int share = (tokens_of(p.tiles) + p.cluster() - 1) / p.cluster();
  const int rows = tokens_of(p.tiles) + (p.cluster() > 1 ? share * p.cluster() : 0);
  p.shared_bytes = static_cast<size_t>(codes_header(p.tiles, units, p.log2_slices)) +
                   std::max(static_cast<size_t>(p.stages * codes_stage_bytes(p.tiles)),
                            static_cast<size_t>(rows * kRowFloats) * sizeof(float));
}

/// Whether slices of so many units have room for their factors.
constexpr bool can_multiply_codes(int units) {
  return units <= kMaxSlices * kMostCodesUnits;
}

inline Plan make_codes_plan(int row_tiles, int units, int64_t tokens) {
  Plan p = make_plan(Input::e4m3, row_tiles, units, tokens);
  p.paired = false;
  divide_codes(p, units);
  fit_codes(p, units);
  return p;
}

/// Boxes as this kernel wants them.
template <typename Describe>
Maps describe_codes(Work work, const Plan& plan, const Describe& describe) {
  work.x.box_rows = tokens_of(plan.tiles);
  for (int32_t i = 0; i < work.params.parts; ++i) work.weights[i].box_rows = kTileRows;
  return describe_weights(work, describe);
}

/// Launches; throws Error when CUDA refuses. `stream` is a cudaStream_t.
void launch_codes(const Params& p, const Maps& maps, const Plan& plan, void* stream);

}  // namespace fathom::ops::stream
