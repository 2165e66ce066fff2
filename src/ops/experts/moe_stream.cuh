// The expert kernels for sm_90 with 5 tokens and more: every warp is a worker of its own that streams weights without a
// pause, from one piece of work to the next.
//
// A piece of work is 16 rows of w1 with the same rows of w3 (32 rows of w2), all columns, times one tile. The copy unit
// brings 128 bytes of these rows at a time to a ring of the warp in shared memory, and a warp asks for the first lines
// of its next piece while it multiplies the last of this one; no block barrier, one block on a multiprocessor, as many
// blocks as multiprocessors. Pieces are handed out by a counter.
//
// Two kinds of sums. *In slices* of the columns, one after the other in the order of the other kernels: the bits are
// the same. *In groups* of the 32 columns that share a scale (moe_groups.cuh), for half as many instructions.
#pragma once

#include "ops/experts/moe_groups.cuh"
#include "ops/experts/moe_kernel.cuh"
#include "ops/experts/moe_maps.h"

namespace fathom::ops::moe {

using device::Phases;

/// What a warp does: a tile, and the first of its rows.
struct Piece {
  Work work;
  int first_row;
  bool exists;
};

/// Weights of a piece on their way: 16 rows of two maps, or of two places in one.
struct Flow {
  const TensorMap* map[2] = {};
  int row[2] = {}, plane = 0;
  int units = 0;  // of a row, 64 bytes each
};

/// The ring of a warp, and what it asks for next.
struct Stream {
  std::byte* ring;
  Phases* arrived;    // [kStreamStages]
  Flow from;          // what is being copied
  int at = 0;         // units of it that have been asked for
  int to = 0;         // stage that is filled next
  int stage = 0;      // stage that is used next
  int round = 0;      // how often it has been used
  bool next = false;  // `from` is the next piece already

  /// `shared`: of the block. Barriers lie behind the rings.
  FATHOM_DEVICE Stream(std::byte* shared, int warp, int lane) {
    ring = shared + warp * kStreamRing;
    arrived = reinterpret_cast<Phases*>(shared + kStreamWarps * kStreamRing) + warp * kStreamStages;
    if (lane == 0) {
      for (int i = 0; i < kStreamStages; ++i) device::init_phases(arrived + i, 1);
      device::publish_phases();
    }
    device::sync_warp();
  }
  /// Asks for a line, of `following()` when the present piece is through. Whoever read the stage before must be done.
  template <typename Following>
  FATHOM_DEVICE void pump(const Following& following, int lane) {
    if (at >= from.units && !next) from = following(), at = 0, next = true;
    if (at >= from.units) return;
    if (lane == 0) {
      device::arrive_and_expect(arrived + to, kStreamStage);
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m)
        device::copy_weight_box(ring + to * kStreamStage + m * kMatrixBytes, from.map[m], at * kUnitBytes, from.row[m],
                                from.plane, arrived + to);
    }
    at += 2, to = to + 1 == kStreamStages ? 0 : to + 1;
  }
  /// Waits for the next line; everybody has done with the one before.
  FATHOM_DEVICE void wait() {
    device::await(arrived + stage, round);
    device::sync_warp();
  }
  FATHOM_DEVICE void read(Unit (&unit)[2], int half, int lane) const {
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      const std::byte* from_line =
          ring + stage * kStreamStage + m * kMatrixBytes + device::box_place(lane / 4, half * 4 + lane % 4);
      unit[m].low = *reinterpret_cast<const Float4*>(from_line);
      unit[m].high = *reinterpret_cast<const Float4*>(from_line + 8 * kLineBytes);
    }
  }
  /// Groups 2 pair and 2 pair + 1 of a unit: word 2 i is this thread's of row g, word 2 i + 1 that of row g + 8.
  FATHOM_DEVICE void read_groups(uint32_t (&words)[4], int matrix, int half, int pair, int lane) const {
    const int row = lane % 16, piece = half * 4 + pair * 2 + lane / 16;
    device::load_matrices(words, ring + stage * kStreamStage + matrix * kMatrixBytes + device::box_place(row, piece));
  }
  FATHOM_DEVICE void advance() {
    if (++stage == kStreamStages) stage = 0, ++round;
  }
};

/// Sums of 2 x 16 rows and up to 16 tokens: of the present slice, and of those before it.
struct StreamSums {
  float sum[2][2][4], total[2][2][4];

  FATHOM_DEVICE void clear() {
    FATHOM_UNROLL
    for (int i = 0; i < 16; ++i) sum[i / 8][i / 4 % 2][i % 4] = total[i / 8][i / 4 % 2][i % 4] = 0;
  }
  FATHOM_DEVICE void fold() {
    FATHOM_UNROLL
    for (int i = 0; i < 16; ++i) {
      total[i / 8][i / 4 % 2][i % 4] += sum[i / 8][i / 4 % 2][i % 4];
      sum[i / 8][i / 4 % 2][i % 4] = 0;
    }
  }
};

/// Activations of this lane's tokens: column lane / 4 of each eight.
struct Columns {
  const std::byte* row[2];
  int slot[2];
};

/// Activations of step `step` of unit base + i, base a multiple of 4. `kGroups`: they lie in the order of columns.
template <ExpertFormat kFormat, int kLive, bool kGroups>
FATHOM_DEVICE void read_columns(Float4 (&b)[kLive], const Columns& x, int base, int i, int step, int lane) {
  constexpr int kUnits = block_units(kFormat);
  const int offset =
      (base / kUnits + i / kUnits) * kBlockBytes + piece_of<kFormat, kGroups>(i % kUnits, step, lane) * 16;
  FATHOM_UNROLL
  for (int j = 0; j < kLive; ++j) b[j] = *reinterpret_cast<const Float4*>(x.row[j] + offset);
}

template <int kHalf>
FATHOM_DEVICE void stream_half(float (&to)[4], const uint32_t (&a)[2][4], const Float4& b) {
  const uint32_t quad[4] = {a[0][2 * kHalf], a[1][2 * kHalf], a[0][2 * kHalf + 1], a[1][2 * kHalf + 1]};
  device::mma_bf16(to, quad, word(kHalf ? b.z : b.x), word(kHalf ? b.w : b.y));
}

/// One unit times the first 8 kLive tokens; `source`: the lane that holds its scales; `done(step)` follows a step.
template <ExpertFormat kFormat, int kLive, typename Done>
FATHOM_DEVICE void stream_multiply(StreamSums& s, const Unit (&u)[2], const Scales<kFormat> (&scales)[2], int source,
                                   const Float4 (&b)[unit_steps(kFormat)][kLive], int lane, const Done& done) {
  uint32_t low[2][2], high[2][2];
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m) unit_factors<kFormat>(scales[m], source, lane, low[m], high[m]);
  FATHOM_UNROLL
  for (int step = 0; step < unit_steps(kFormat); ++step) {
    uint32_t a[2][2][4];  // [matrix][rows g, g + 8][pair]
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      decode_step<kFormat, false>(u[m].low, low[m], step, a[m][0]);
      decode_step<kFormat, false>(u[m].high, high[m], step, a[m][1]);
    }
    FATHOM_UNROLL
    for (int j = 0; j < kLive; ++j) {
      stream_half<0>(s.sum[0][j], a[0], b[step][j]), stream_half<0>(s.sum[1][j], a[1], b[step][j]);
      stream_half<1>(s.sum[0][j], a[0], b[step][j]), stream_half<1>(s.sum[1][j], a[1], b[step][j]);
    }
    done(step);
  }
}

/// All columns of a piece. `following`: what to ask for when its own lines are on their way.
template <ExpertFormat kFormat, int kLive, bool kGroups, typename Following>
FATHOM_DEVICE void stream_columns(Stream& stream, StreamSums& sums, const Source& s, const Columns& x,
                                  const Following& following, int lane) {
  constexpr int kSteps = unit_steps(kFormat);
  Scales<kFormat> scales[2] = {}, later[2] = {};
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m) load_scales(scales[m], s.rows[m], s.pitch, 0, s.count, lane);
  Float4 b[kSteps][kLive];  // of the unit; those of the next take their place step by step
  FATHOM_UNROLL
  for (int step = 0; step < kSteps; ++step) read_columns<kFormat, kLive, kGroups>(b[step], x, 0, 0, step, lane);
  int slice = 0, slice_end = first_block(s.blocks, s.log2_slices, 1) * block_units(kFormat);
  FATHOM_UNROLL_1
  for (int base = 0; base < s.count; base += kScaleUnits) {
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) load_scales(later[m], s.rows[m], s.pitch, base + kScaleUnits, s.count, lane);
    FATHOM_UNROLL
    for (int i = 0; i < kScaleUnits; ++i) {
      if (base + i >= s.count) continue;
      if (i % 2 == 0) stream.wait(), stream.pump(following, lane);
      Unit unit[2];
      stream.read(unit, i % 2, lane);
      const bool more = base + i + 1 < s.count;
      stream_multiply<kFormat, kLive>(sums, unit, scales, (lane & ~3) + i, b, lane, [&](int step) {
        if (more) read_columns<kFormat, kLive, kGroups>(b[step], x, base, i + 1, step, lane);
      });
      if (i % 2 == 1 || !more) stream.advance();
      if (base + i + 1 == slice_end) {
        sums.fold();
        slice_end = first_block(s.blocks, s.log2_slices, ++slice + 1) * block_units(kFormat);
      }
    }
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) scales[m] = later[m];
  }
}

/// The same for MXFP4 with sums in groups, 8 tokens.
template <typename Following>
FATHOM_DEVICE void stream_groups(Stream& stream, StreamSums& sums, const Source& s, const Columns& x,
                                 const Following& following, int lane) {
  constexpr ExpertFormat kFormat = ExpertFormat::mxfp4;
  constexpr int kGroups = 4;  // of a unit
  Scales<kFormat> scales[2] = {}, later[2] = {};
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m) load_scales(scales[m], s.rows[m], s.pitch, 0, s.count, lane);
  Float4 b[kGroups][1];  // of the unit; those of the next take their place
  FATHOM_UNROLL
  for (int group = 0; group < kGroups; ++group) read_columns<kFormat, 1, true>(b[group], x, 0, 0, group, lane);
  FATHOM_UNROLL_1
  for (int base = 0; base < s.count; base += kScaleUnits) {
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) load_scales(later[m], s.rows[m], s.pitch, base + kScaleUnits, s.count, lane);
    FATHOM_UNROLL
    for (int i = 0; i < kScaleUnits; ++i) {
      if (base + i >= s.count) continue;
      if (i % 2 == 0) stream.wait(), stream.pump(following, lane);
      uint32_t words[2][2][4], low[2], high[2];
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) {
        FATHOM_UNROLL
        for (int pair = 0; pair < 2; ++pair) stream.read_groups(words[m][pair], m, i % 2, pair, lane);
        low[m] = shuffle_word(scales[m].low[0], (lane & ~3) + i);
        high[m] = shuffle_word(scales[m].high[0], (lane & ~3) + i);
      }
      const bool more = base + i + 1 < s.count;
      FATHOM_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m) {
          const uint32_t(&codes)[4] = words[m][group / 2];
          multiply_group(sums.total[m][0], codes[group % 2 * 2], codes[group % 2 * 2 + 1], group_scale(low[m], group),
                         group_scale(high[m], group), b[group][0]);
        }
        if (more) read_columns<kFormat, 1, true>(b[group], x, base, i + 1, group, lane);
      }
      if (i % 2 == 1 || !more) stream.advance();
    }
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) scales[m] = later[m];
  }
}

/// A warp's place among all, and what is left to do.
struct Worker {
  int warp, lane, first, workers, pieces;
  uint32_t* taken;  // pieces that were handed out beyond the first of each worker

  FATHOM_DEVICE Worker(uint32_t* counter, int count) {
    warp = device::uniform(device::warp_index()), lane = device::lane_index(), taken = counter, pieces = count;
    first = device::block_x() * kStreamWarps + warp, workers = device::grid_x() * kStreamWarps;
  }
  /// The number of the next piece; `pieces` or more when there is none.
  FATHOM_DEVICE int next() const {
    int n = 0;
    if (lane == 0) n = workers + static_cast<int>(device::atomic_add(taken, 1u));
    return device::shuffle_int(n, 0);
  }
};

/// Counts this warp; true in all lanes of the one that is the last of `expected`, which sees what all wrote before.
FATHOM_DEVICE bool last_warp(uint32_t* counter, uint32_t expected, int lane) {
  device::sync_warp();
  int last = 0;
  if (lane == 0) {
    device::fence();
    last = device::atomic_add(counter, 1u) + 1 == expected;
    device::fence();
  }
  return device::shuffle_int(last, 0) != 0;
}

/// Piece `n` of tiles x groups of `rows` rows.
FATHOM_DEVICE Piece find_piece(const Params& p, int n, int pieces, int groups, int rows) {
  if (n >= pieces) return {{{}, 0, 0, false}, 0, false};
  const int tile = n / groups;
  Work work = shared_work(p, tile);
  if (tile >= p.shared_tiles) {
    const Float4 v = device::load_l2(reinterpret_cast<const Float4*>(p.tile + (tile - p.shared_tiles)));
    work.tile = {static_cast<int32_t>(word(v.x)), static_cast<int32_t>(word(v.y)), static_cast<int32_t>(word(v.z)), 0};
  }
  return {work, (n - tile * groups) * rows, true};
}

FATHOM_DEVICE Columns find_columns(const Params& p, const Work& work, const bf16* base, bool hidden, int lane) {
  Columns x;
  FATHOM_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int i = 8 * j + lane / 4, last = work.tile.count - 1;
    x.slot[j] = slot_of(p, work, i < last ? i : last);
    const int64_t row = hidden                 ? int64_t{x.slot[j]} * p.hidden_pitch
                        : work.tile.expert < 0 ? int64_t{x.slot[j] - p.tokens * p.choices} * p.d
                                               : int64_t{x.slot[j] / p.choices} * p.d;
    x.row[j] = reinterpret_cast<const std::byte*>(base + row);
  }
  return x;
}

template <ExpertFormat kFormat, bool kGroups, typename Following>
FATHOM_DEVICE void stream_tile(Stream& stream, StreamSums& sums, const Source& s, const Columns& x, int tokens,
                               const Following& following, int lane) {
  sums.clear();
  if constexpr (kGroups && kFormat == ExpertFormat::mxfp4)
    stream_groups(stream, sums, s, x, following, lane);
  else if (is_fp4(kFormat) || tokens <= 8)
    stream_columns<kFormat, 1, kGroups>(stream, sums, s, x, following, lane);
  else if constexpr (!is_fp4(kFormat))  // the shared expert
    stream_columns<kFormat, 2, kGroups>(stream, sums, s, x, following, lane);
}

/// Calls `put(slot, row of 16, i)` for the sums that this lane holds: register i of tile j, column 8 j + 2 t + i % 2.
template <typename Put>
FATHOM_DEVICE void for_own_sums(const Columns& x, int tokens, int lane, const Put& put) {
  FATHOM_UNROLL
  for (int j = 0; j < 2; ++j) {
    if (8 * j >= tokens) break;
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = lane % 4 * 2 + i % 2;
      const int slot = device::shuffle_int(x.slot[j], column * 4);
      if (8 * j + column < tokens) put(slot, lane / 4 + i / 2 * 8, j, i);
    }
  }
}

/// What is left to multiply the sums of a piece with.
template <ExpertFormat kFormat, bool kGroups>
FATHOM_DEVICE float stream_restore(const Weight& w, int expert) {
  if constexpr (!kGroups) return restore<kFormat>(w, expert);
  return kFormat == ExpertFormat::mxfp4 ? kGroupRestore : restore<kFormat>(w, expert) / kGroupLift;
}

template <ExpertFormat kFormat, bool kGroups, typename Following>
FATHOM_DEVICE void up_piece(const Params& p, const Weight& gate, const Weight& up, const Piece& piece, Stream& stream,
                            const Following& following, int lane) {
  if (piece.first_row >= gate.rows) return;
  const Tile& tile = piece.work.tile;
  Source source;
  source.rows[0] = find_rows<kFormat>(gate, tile.expert, piece.first_row, 0, lane);
  source.rows[1] = find_rows<kFormat>(up, tile.expert, piece.first_row, 0, lane);
  source.pitch = {8 * gate.row_bytes, 8 * gate.scale_row};
  source.count = gate.blocks * block_units(kFormat), source.blocks = gate.blocks;
  source.log2_slices = p.log2_up_slices;
  const Columns x = find_columns(p, piece.work, p.x_wide, false, lane);
  StreamSums sums;
  stream_tile<kFormat, kGroups>(stream, sums, source, x, tile.count, following, lane);

  const float gate_factor = stream_restore<kFormat, kGroups>(gate, tile.expert);
  const float up_factor = stream_restore<kFormat, kGroups>(up, tile.expert);
  const bool weighted = tile.expert >= 0;
  for_own_sums(x, tile.count, lane, [&](int slot, int row, int j, int i) {
    const float weight = weighted ? p.weight[slot / p.choices * p.weight_stride + slot % p.choices] : 1.0f;
    p.hidden[int64_t{slot} * p.hidden_pitch + piece.first_row + row] = to_bf16(
        hidden_value(sums.total[0][j][i] * gate_factor, sums.total[1][j][i] * up_factor, p.limit, weight, weighted));
  });
  const int group = piece.first_row / kBlock;
  if (last_warp(p.arrivals + piece.work.index * (p.hidden_pitch / kBlock) + group, kBlock / kGroupRows, lane))
    quantize_group<kGroups>(p, piece.work, group, 0, 1);
}

FATHOM_DEVICE Flow flow_of_up(const Params& p, const Maps& maps, const Piece& piece, ExpertFormat format) {
  const bool shared = piece.work.tile.expert < 0;
  const Weight& w = shared ? p.s1 : p.w1;
  if (!piece.exists || piece.first_row >= w.rows) return {};
  return {{shared ? &maps.s1 : &maps.w1, shared ? &maps.s3 : &maps.w3},
          {piece.first_row, piece.first_row},
          shared ? 0 : piece.work.tile.expert,
          w.blocks * block_units(shared ? ExpertFormat::fp8 : format)};
}

/// Grid: as many blocks as multiprocessors.
template <ExpertFormat kFormat, bool kGroups>
FATHOM_DEVICE void stream_up(const Params& p, const Maps& maps, std::byte* shared) {
  const int groups = p.hidden_pitch / kGroupRows;
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int tiles = p.shared_tiles + static_cast<int>(device::load_l2(p.tile_count));
  const Worker worker(p.arrivals + p.counters - 2, tiles * groups);
  const int lane = worker.lane;
  Stream stream(shared, worker.warp, lane);
  Piece piece = find_piece(p, worker.first, worker.pieces, groups, kGroupRows);
  stream.from = flow_of_up(p, maps, piece, kFormat), stream.next = true;
  for (int i = 0; i < kStreamStages - 1; ++i) stream.pump([] { return Flow{}; }, lane);
  while (piece.exists) {
    const int n = worker.next();
    const auto flow = [&] { return flow_of_up(p, maps, find_piece(p, n, worker.pieces, groups, kGroupRows), kFormat); };
    stream.next = false;
    if (piece.work.tile.expert < 0)
      up_piece<ExpertFormat::fp8, kGroups>(p, p.s1, p.s3, piece, stream, flow, lane);
    else
      up_piece<kFormat, kGroups>(p, p.w1, p.w3, piece, stream, flow, lane);
    // A piece without rows of its own asked for nothing.
    if (!stream.next) stream.pump(flow, lane);
    piece = find_piece(p, n, worker.pieces, groups, kGroupRows);  // again: registers are dearer
  }
}

template <ExpertFormat kFormat, bool kGroups, typename Following>
FATHOM_DEVICE void down_piece(const Params& p, const Weight& w, const Piece& piece, Stream& stream,
                              const Following& following, int lane) {
  const Tile& tile = piece.work.tile;
  Source source;
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m)
    source.rows[m] = find_rows<kFormat>(w, tile.expert, piece.first_row + m * kGroupRows, 0, lane);
  source.pitch = {8 * w.row_bytes, 8 * w.scale_row};
  source.count = w.blocks * block_units(kFormat), source.blocks = w.blocks, source.log2_slices = p.log2_down_slices;
  const Columns x = find_columns(p, piece.work, p.hidden, true, lane);
  StreamSums sums;
  stream_tile<kFormat, kGroups>(stream, sums, source, x, tile.count, following, lane);

  const float factor = stream_restore<kFormat, kGroups>(w, tile.expert);
  for_own_sums(x, tile.count, lane, [&](int slot, int row, int j, int i) {
    bf16* to = p.part + int64_t{slot} * p.d + piece.first_row + row;
    to[0] = to_bf16(sums.total[0][j][i] * factor), to[kGroupRows] = to_bf16(sums.total[1][j][i] * factor);
  });
  const int group = piece.first_row / (2 * kGroupRows);
  const uint32_t tiles = static_cast<uint32_t>(p.shared_tiles) + device::load_l2(p.tile_count);
  if (last_warp(p.arrivals + p.row_arrivals + group, tiles, lane))
    sum_parts(p, piece.first_row, 2 * kGroupRows, lane, 32);
}

FATHOM_DEVICE Flow flow_of_down(const Params& p, const Maps& maps, const Piece& piece, ExpertFormat format) {
  if (!piece.exists) return {};
  const bool shared = piece.work.tile.expert < 0;
  const TensorMap* map = shared ? &maps.s2 : &maps.w2;
  return {{map, map},
          {piece.first_row, piece.first_row + kGroupRows},
          shared ? 0 : piece.work.tile.expert,
          (shared ? p.s2 : p.w2).blocks * block_units(shared ? ExpertFormat::fp8 : format)};
}

/// Grid: as many blocks as multiprocessors. Tiles are known, and weights may be read, before the kernel before ends.
template <ExpertFormat kFormat, bool kGroups>
FATHOM_DEVICE void stream_down(const Params& p, const Maps& maps, std::byte* shared) {
  const int groups = p.d / (2 * kGroupRows);
  const int tiles = p.shared_tiles + static_cast<int>(device::load_l2(p.tile_count));
  const Worker worker(p.arrivals + p.counters - 1, tiles * groups);
  const int lane = worker.lane;
  Stream stream(shared, worker.warp, lane);
  Piece piece = find_piece(p, worker.first, worker.pieces, groups, 2 * kGroupRows);
  stream.from = flow_of_down(p, maps, piece, kFormat), stream.next = true;
  for (int i = 0; i < kStreamStages - 1; ++i) stream.pump([] { return Flow{}; }, lane);
  device::wait_for_previous_kernel();  // the hidden rows
  device::let_next_kernel_start();
  while (piece.exists) {
    const int n = worker.next();
    const auto flow = [&] {
      return flow_of_down(p, maps, find_piece(p, n, worker.pieces, groups, 2 * kGroupRows), kFormat);
    };
    stream.next = false;
    if (piece.work.tile.expert < 0)
      down_piece<ExpertFormat::fp8, kGroups>(p, p.s2, piece, stream, flow, lane);
    else
      down_piece<kFormat, kGroups>(p, p.w2, piece, stream, flow, lane);
    piece = find_piece(p, n, worker.pieces, groups, 2 * kGroupRows);  // again: registers are dearer
  }
}

}  // namespace fathom::ops::moe
