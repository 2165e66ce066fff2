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

/// The tiles of block `split`; without divisions for a token that has all its rows.
FATHOM_DEVICE Share share_of_token(const Params& p, RowCounts counts, int tile_rows, int splits, int split) {
  const int all = p.window.most + p.extra.most;
  if (counts.total() != all) return share_of(counts.total(), tile_rows, splits, split);
  const int first = split * p.tiles_each, left = (all + tile_rows - 1) / tile_rows - first;
  return {first, left < 0 ? 0 : (left < p.tiles_each ? left : p.tiles_each), p.blocks};
}

/// Asks for the cache lines of the indices from `first` on, which the walk reads a few at a time.
FATHOM_DEVICE void prefetch_indices(const Params& p, int token, RowCounts counts, int first) {
  int row = first + 32 * device::thread_index();
  if (row >= counts.total()) return;
  const Rows& rows = row < counts.window ? p.window : p.extra;
  if (row >= counts.window) row -= counts.window;
  device::prefetch(rows.index + token * rows.index_stride + row);
}

struct Rotation;

/// Who this thread is. `warp` is known to the compiler to be uniform.
struct Place {
  int thread, warp, lane, g, t;
  FATHOM_DEVICE Place()
      : thread(device::thread_index()),
        warp(device::uniform(thread / 32)),
        lane(thread % 32),
        g(lane / 4),
        t(lane % 4) {}
};

/// Shared-memory views of one block.
template <typename G>
struct Shared {
  std::byte* base;

  FATHOM_DEVICE std::byte* stage(int place) const { return base + G::kStageAt + place * G::kStageBytes; }
  FATHOM_DEVICE std::byte* scores(int parity) const { return base + G::kScoreAt + parity * G::kScoreBuffer; }
  FATHOM_DEVICE std::byte* probabilities(int parity) const {
    return base + G::kProbabilityAt + parity * G::kProbabilityBuffer;
  }
  FATHOM_DEVICE float* correction(int parity) const {
    return reinterpret_cast<float*>(base + G::kCorrectionAt) + parity * G::kHeads;
  }
  FATHOM_DEVICE uint8_t* changed(int parity) const {
    return reinterpret_cast<uint8_t*>(base + G::kChangedAt) + parity * kWarps;
  }
  FATHOM_DEVICE const std::byte** row_data() const { return reinterpret_cast<const std::byte**>(base + G::kRowDataAt); }
  FATHOM_DEVICE const std::byte** row_scale() const {
    return reinterpret_cast<const std::byte**>(base + G::kRowScaleAt);
  }
  FATHOM_DEVICE float* row_bias() const { return reinterpret_cast<float*>(base + G::kRowBiasAt); }
  FATHOM_DEVICE float* state() const { return reinterpret_cast<float*>(base + G::kStateAt); }
  FATHOM_DEVICE float* sinks() const { return reinterpret_cast<float*>(base + G::kSinkAt); }
  FATHOM_DEVICE Rotation* rotations() const { return reinterpret_cast<Rotation*>(base + G::kRotationAt); }
  FATHOM_DEVICE uint32_t* flags() const { return reinterpret_cast<uint32_t*>(base + G::kFlagAt); }
};

/// Place of row `row` of tile `tile` in the ring.
template <typename G>
FATHOM_DEVICE int ring_place(int tile, int row) {
  return (tile & (kRingTiles - 1)) * G::kTileRows + row;
}

/// Writes the addresses of a slot into the ring; a negative slot becomes a row of zeros that is masked.
template <typename G>
FATHOM_DEVICE void describe_row(const Shared<G>& shared, const Rows& rows, int slot, int place) {
  const std::byte* data = nullptr;
  const std::byte* scale = nullptr;
  if (slot >= 0) {
    const auto page_rows = static_cast<uint32_t>(rows.pool.page_rows);
    const uint32_t page = rows.pages.page_of(slot), row = static_cast<uint32_t>(slot) - page * page_rows;
    constexpr int kWidth = G::kFormat == RowFormat::v4 ? kV4DataBytes : kHeadDim * 2;
    const std::byte* start = rows.pool.data + static_cast<int64_t>(page) * rows.pool.stride;
    data = start + static_cast<int64_t>(row) * kWidth;
    scale = start + static_cast<int64_t>(page_rows) * kV4DataBytes + static_cast<int64_t>(row) * kV4ScaleBytes;
  }
  shared.row_data()[place] = data;
  if (G::kFormat == RowFormat::v4) shared.row_scale()[place] = scale;
  shared.row_bias()[place] = slot >= 0 ? 0.0f : -__builtin_huge_valf();
}

/// Starts the copies of one tile into stage `place`; all threads take part.
template <typename G>
FATHOM_DEVICE void start_tile(const Shared<G>& shared, const void* any_address, int tile, int stage_place) {
  constexpr int kLanes = kThreads / G::kTileRows;  // threads on one row
  constexpr int kPieces = (G::kFormat == RowFormat::v4 ? kV4DataBytes : kHeadDim * 2) / 16;
  const int row = device::thread_index() / kLanes, lane = device::thread_index() % kLanes;
  const int place = ring_place<G>(tile, row);
  const std::byte* data = shared.row_data()[place];
  const bool present = data != nullptr;
  const std::byte* from = present ? data : static_cast<const std::byte*>(any_address);
  std::byte* to = shared.stage(stage_place) + physical_row(row) * G::kRowStride;
  FATHOM_UNROLL
  for (int piece = lane; piece < kPieces; piece += kLanes)
    device::copy_async_16(to + 16 * piece, present ? from + 16 * piece : from, present);
  if (G::kFormat == RowFormat::v4 && lane == kLanes - 1)
    device::copy_async_8(to + G::kScaleOffset, present ? shared.row_scale()[place] : from, present);
}

}  // namespace fathom::ops::sparse_decode
