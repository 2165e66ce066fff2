// The decode kernel for few rows a block: all its rows at once, in three phases with one barrier between two of them.
//
// Where a token's rows are spread over so many blocks that each has at most kTiles tiles of 16, a pipeline has nothing
// to overlap, and every interval of it costs a barrier and the latency of a dependent chain. Here all rows are asked
// for together, each warp by itself; then come the scores of all rows, one softmax, and the output. A grid of clusters
// exchanges partial outputs through shared memory (decode_exchange.cuh), any other grid through the meeting of
// decode_combine.cuh.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_combine.cuh"
#include "ops/sparse_attention/decode_exchange.cuh"
#include "ops/sparse_attention/decode_kernel.cuh"

namespace fathom::ops::sparse_decode {

/// A lane's knowledge of one row: where it lies (null: no row, or masked), and from there to its scale bytes.
struct RowPlace {
  const std::byte* data = nullptr;
  int to_scales = 0;
};

FATHOM_DEVICE RowPlace place_of(const KvPool& pool, int slot) {
  if (slot < 0) return {};
  const auto page_rows = static_cast<uint32_t>(pool.page_rows);
  const uint32_t page = static_cast<uint32_t>(slot) / page_rows, row = static_cast<uint32_t>(slot) - page * page_rows;
  return {pool.data + static_cast<int64_t>(page) * pool.stride + row * kV4DataBytes,
          static_cast<int>((page_rows - row) * kV4DataBytes + row * kV4ScaleBytes)};
}

/// Reads lengths and indices, the indices as if the token had all its rows, so that the common case does not wait for
/// the lengths; the queries are asked for behind them. Lane i < 2 kTiles of warp w has row 2 kTiles w + i of the block.
template <typename G>
FATHOM_DEVICE RowPlace find_rows(const Params& p, const Place& at, int token, int first_head, RawQuery<G>& query,
                                 Share& share) {
  constexpr int kEach = 2 * G::kTiles;
  const int split = device::block_x(), splits = device::grid_x(), row = kEach * at.warp + at.lane;
  const RowCounts all{p.window.most, p.extra.most};
  const Share guess = share_of(all.total(), G::kTileRows, splits, split);
  const auto slot_of = [&](RowCounts counts, const Share& s) {
    return at.lane < kEach && row < s.tiles * G::kTileRows
               ? load_slot(p, token, counts, s.first_tile * G::kTileRows + row)
               : -1;
  };
  int slot = slot_of(all, guess);
  const RowCounts counts{clamp_length(p.window, token), clamp_length(p.extra, token)};
  load_query<G>(p, at, token, first_head, query);
  share = share_of(counts.total(), G::kTileRows, splits, split);
  if (counts.window != all.window || counts.extra != all.extra) slot = slot_of(counts, share);
  const bool windowed = share.first_tile * G::kTileRows + row < counts.window;
  return place_of(windowed ? p.window.pool : p.extra.pool, slot);
}

/// Starts the copies of the warp's rows; rows that are not there become zeros and are masked.
template <typename G>
FATHOM_DEVICE void gather_rows(const Shared<G>& shared, const void* any_address, const Place& at, RowPlace mine) {
  constexpr int kEach = 2 * G::kTiles;
  if (at.lane < kEach) shared.row_bias()[kEach * at.warp + at.lane] = mine.data ? 0.0f : -__builtin_huge_valf();
  const auto address = reinterpret_cast<uint64_t>(mine.data);
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const auto* data = reinterpret_cast<const std::byte*>(device::shuffle_from(address, i));
    const int to_scales = device::shuffle_from(mine.to_scales, i), row = kEach * at.warp + i;
    const bool present = data != nullptr;
    const auto* from = present ? data : static_cast<const std::byte*>(any_address);
    std::byte* to = shared.stage(row / G::kTileRows) + physical_row(row % G::kTileRows) * G::kRowStride;
    device::copy_async_16(to + 16 * at.lane, from + 16 * at.lane, present);
    if (at.lane < 4)
      device::copy_async_16(to + 512 + 16 * at.lane, from + 512 + 16 * at.lane, present);
    else if (at.lane == 4)
      device::copy_async_8(to + G::kScaleOffset, present ? data + to_scales : from, present);
  }
  device::copy_async_commit();
}

/// Softmax over all rows of the block: probabilities as fp16, (reference, sum) of each head into shared memory.
template <typename G>
FATHOM_DEVICE void softmax_rows(const Shared<G>& shared, const Place& place, const Offsets<G>& at, const Params& p) {
  constexpr int kCount = G::kScoresPerThread, kLanes = G::kLanesPerHead;
  using Vector = FloatVector<kCount>;
  float score[G::kTiles][kCount], most = -__builtin_huge_valf();
  FATHOM_UNROLL
  for (int tile = 0; tile < G::kTiles; ++tile) {
    const std::byte* scores = shared.scores(tile) + at.score_load;
    Vector part[G::kSlices];
    FATHOM_UNROLL
    for (int s = 0; s < G::kSlices; ++s) part[s] = *reinterpret_cast<const Vector*>(scores + s * G::kScoreBytes);
    const Vector bias =
        *reinterpret_cast<const Vector*>(shared.row_bias() + tile * G::kTileRows + place.thread % kLanes * kCount);
    FATHOM_UNROLL
    for (int i = 0; i < kCount; ++i) {
      float sum = part[0].v[i];
      FATHOM_UNROLL
      for (int s = 1; s < G::kSlices; ++s) sum += part[s].v[i];
      score[tile][i] = sum * p.score_scale + bias.v[i];
      most = score[tile][i] > most ? score[tile][i] : most;
    }
  }
  FATHOM_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const float other = device::shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  const float reference = most == -__builtin_huge_valf() ? 0.0f : most;
  float sum = 0;
  FATHOM_UNROLL
  for (int tile = 0; tile < G::kTiles; ++tile) {
    HalfVector<kCount> rounded;
    FATHOM_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float probability = device::exp2_fast(score[tile][i] - reference);
      sum += probability;
      rounded.v[i] = static_cast<uint16_t>(device::pack_f16x2(probability, 0.0f));
    }
    *reinterpret_cast<HalfVector<kCount>*>(shared.probabilities(tile) + at.probability_store) = rounded;
  }
  store_state<G>({most, sum}, shared.state());
}

/// Largest and smallest scale byte of the warp's slice over the rows that are there (255 as smallest without any).
struct ScaleRange {
  int largest, smallest;

  template <typename G>
  FATHOM_DEVICE static ScaleRange of(const Shared<G>& shared, const Place& at) {
    uint32_t most = 0, least = 255;
    FATHOM_UNROLL
    for (int i = 0; i < (G::kTiles * G::kTileRows + 31) / 32; ++i) {
      const int row = 32 * i + at.lane;
      if (row >= G::kTiles * G::kTileRows || shared.row_bias()[row] != 0.0f) continue;
      const std::byte* start = shared.stage(row / G::kTileRows) + physical_row(row % G::kTileRows) * G::kRowStride;
      const auto scale = static_cast<uint32_t>(start[G::kScaleOffset + at.warp]);
      most = scale > most ? scale : most, least = scale < least ? scale : least;
    }
    return {static_cast<int>(device::largest_of_warp(most)), static_cast<int>(device::smallest_of_warp(least))};
  }
};

/// O = P V over all rows of the block, by the warp that owns the slice.
template <typename G>
FATHOM_DEVICE void value_rows(const Shared<G>& shared, const Place& place, const Offsets<G>& at, Output<G>& output) {
  const auto tile_of = [&](int tile, auto load) {
    uint32_t value[16];
    const bool f16 = load(shared.stage(tile), value);
    add_values<G>(shared.probabilities(tile) + at.probability_load, f16, value, output);
  };
  if (!slice_is_fp8(G::kFormat, place.warp)) {
    output.unit = kBf16Unit;
    FATHOM_UNROLL_1
    for (int tile = 0; tile < G::kTiles; ++tile)
      tile_of(tile, [&](const std::byte* stage, uint32_t(&value)[16]) {
        return load_bf16_values<G>(stage + at.value, value);
      });
    return;
  }
  const ScaleRange range = ScaleRange::of<G>(shared, place);
  output.unit = range.largest;
  if (range.smallest >= range.largest + device::kLowestShiftF16) {
    FATHOM_UNROLL
    for (int tile = 0; tile < G::kTiles; ++tile)
      tile_of(tile, [&](const std::byte* stage, uint32_t(&value)[16]) {
        ValueCodes::load<G>(stage, at).decode_f16(output.unit, value);
        return true;
      });
  } else {
    FATHOM_UNROLL_1
    for (int tile = 0; tile < G::kTiles; ++tile)
      tile_of(tile, [&](const std::byte* stage, uint32_t(&value)[16]) {
        return load_fp8_values<G>(stage, at, output, value);
      });
  }
}

/// The block's whole work. The grid is (splits, groups of heads, tokens); with kCluster, the splits are one cluster.
template <typename G>
FATHOM_DEVICE void burst_block(const Params& p, std::byte* shared_base) {
  const Shared<G> shared{shared_base};
  const Place place;
  if constexpr (G::kCluster > 0) open_inbox<G>(shared, place);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int token = device::block_z(), first_head = device::block_y() * G::kHeads;

  RawQuery<G> raw;
  Share share;
  const RowPlace mine = find_rows<G>(p, place, token, first_head, raw, share);
  if (G::kCluster == 0 && static_cast<int>(device::block_x()) >= share.blocks) return;
  gather_rows<G>(shared, p.q, place, mine);
  prepare_sinks<G>(shared, p, first_head);
  if constexpr (G::kCluster > 0) {
    if (place.thread == 0) expect_messages<G>(shared, share.blocks);
  } else {
    if (share.blocks > 1 && place.thread == 0) remember_arrivals<G>(shared, p);
  }
  if (p.position && place.warp == 1) prepare_rotations<G>(shared, p, token, place.lane);
  const Offsets<G> at(place);
  Output<G> output;
  if (device::block_x() < share.blocks) {
    Query<G> query;
    arrange_query<G>(place, raw, query);
    device::copy_async_wait<0>();
    device::sync_block();
    FATHOM_UNROLL
    for (int tile = 0; tile < G::kTiles; ++tile) score_tile<G>(shared, place, at, query, shared.stage(tile), tile);
    device::sync_block();
    softmax_rows<G>(shared, place, at, p);
    device::sync_block();
    value_rows<G>(shared, place, at, output);
  }
  if constexpr (G::kCluster > 0) {
    exchange<G>(shared, p, place, token, first_head, share.blocks, output);
  } else {
    if (share.blocks == 1) device::sync_block();  // the rows' memory takes the rounded output
    finish<G>(shared, p, share.blocks, output);
  }
}

}  // namespace fathom::ops::sparse_decode
