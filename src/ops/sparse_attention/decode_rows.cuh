// From row indices to staged rows: the ring of row addresses and the asynchronous copies into shared memory.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_layout.h"
#include "ops/sparse_attention/decode_params.h"

namespace fathom::ops::sparse_decode {

/// How many rows of each kind the token has.
struct RowCounts {
  int window, extra;
  FATHOM_DEVICE int total() const { return window + extra; }
};

FATHOM_DEVICE int clamp_length(const Rows& rows, int token) {
  if (!rows.length) return rows.most;
  const int n = rows.length[token];
  return n < 0 ? 0 : (n < rows.most ? n : rows.most);
}

/// The slot of the token's row number `row` (window rows first), or -1.
FATHOM_DEVICE int load_slot(const Params& p, int token, RowCounts counts, int row) {
  if (row < counts.window) return p.window.index[token * p.window.index_stride + row];
  row -= counts.window;
  return row < counts.extra ? p.extra.index[token * p.extra.index_stride + row] : -1;
}

struct Rotation;

/// Shared-memory views of one block.
template <typename G>
struct Shared {
  std::byte* base;

  FATHOM_DEVICE std::byte* stage(int tile) const { return base + G::kStageAt + tile % G::kStages * G::kStageBytes; }
  FATHOM_DEVICE std::byte* scores(int tile, int slice) const {
    return base + G::kScoreAt + (tile & 1) * G::kScoreBuffer + slice * G::kScoreBytes;
  }
  FATHOM_DEVICE std::byte* probabilities(int tile) const {
    return base + G::kProbabilityAt + (tile & 1) * G::kProbabilityBuffer;
  }
  FATHOM_DEVICE float* correction(int tile) const {
    return reinterpret_cast<float*>(base + G::kCorrectionAt) + (tile & 1) * G::kHeads;
  }
  FATHOM_DEVICE uint8_t* changed(int tile) const {
    return reinterpret_cast<uint8_t*>(base + G::kChangedAt) + (tile & 1) * kWarps;
  }
  FATHOM_DEVICE const std::byte** row_data() const { return reinterpret_cast<const std::byte**>(base + G::kRowDataAt); }
  FATHOM_DEVICE const std::byte** row_scale() const {
    return reinterpret_cast<const std::byte**>(base + G::kRowScaleAt);
  }
  FATHOM_DEVICE float* row_bias() const { return reinterpret_cast<float*>(base + G::kRowBiasAt); }
  FATHOM_DEVICE float* state() const { return reinterpret_cast<float*>(base + G::kStateAt); }
  FATHOM_DEVICE Rotation* rotations() const { return reinterpret_cast<Rotation*>(base + G::kRotationAt); }
  FATHOM_DEVICE uint32_t* flags() const { return reinterpret_cast<uint32_t*>(base + G::kFlagAt); }
};

/// Place of row `row` of tile `tile` in the ring.
template <typename G>
FATHOM_DEVICE int ring_place(int tile, int row) {
  return tile % kRingTiles * G::kTileRows + row;
}

/// Writes the addresses of a slot into the ring; a negative slot becomes a row of zeros that is masked.
template <typename G>
FATHOM_DEVICE void describe_row(const Shared<G>& shared, const Rows& rows, int slot, int place) {
  const std::byte* data = nullptr;
  const std::byte* scale = nullptr;
  if (slot >= 0) {
    const auto page_rows = static_cast<uint32_t>(rows.pool.page_rows);
    const uint32_t page = static_cast<uint32_t>(slot) / page_rows, row = static_cast<uint32_t>(slot) - page * page_rows;
    constexpr int kWidth = G::kFormat == RowFormat::v4 ? kV4DataBytes : kHeadDim * 2;
    const std::byte* start = rows.pool.data + static_cast<int64_t>(page) * rows.pool.stride;
    data = start + static_cast<int64_t>(row) * kWidth;
    scale = start + static_cast<int64_t>(page_rows) * kV4DataBytes + static_cast<int64_t>(row) * kV4ScaleBytes;
  }
  shared.row_data()[place] = data;
  if (G::kFormat == RowFormat::v4) shared.row_scale()[place] = scale;
  shared.row_bias()[place] = slot >= 0 ? 0.0f : -__builtin_huge_valf();
}

/// Starts the copies of one tile; all threads take part. Ends with a commit of its own.
template <typename G>
FATHOM_DEVICE void start_tile(const Shared<G>& shared, const void* any_address, int tile) {
  constexpr int kLanes = kThreads / G::kTileRows;  // threads on one row
  constexpr int kPieces = (G::kFormat == RowFormat::v4 ? kV4DataBytes : kHeadDim * 2) / 16;
  const int row = device::thread_index() / kLanes, lane = device::thread_index() % kLanes;
  const int place = ring_place<G>(tile, row);
  const std::byte* data = shared.row_data()[place];
  const bool present = data != nullptr;
  const std::byte* from = present ? data : static_cast<const std::byte*>(any_address);
  std::byte* to = shared.stage(tile) + physical_row(row) * G::kRowStride;
  FATHOM_UNROLL
  for (int piece = lane; piece < kPieces; piece += kLanes)
    device::copy_async_16(to + 16 * piece, present ? from + 16 * piece : from, present);
  if (G::kFormat == RowFormat::v4 && lane == kLanes - 1)
    device::copy_async_8(to + G::kScaleOffset, present ? shared.row_scale()[place] : from, present);
}

}  // namespace fathom::ops::sparse_decode
