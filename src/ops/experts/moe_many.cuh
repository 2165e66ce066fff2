// The expert kernels for sm_90 with many tokens of an expert (MXFP4), as in chunks of prompts: warpgroup products.
//
// A piece of work is a tile of up to 64 tokens times 128 rows of w1 and the same of w3 (256 rows of w2), all columns;
// one block on a multiprocessor goes from piece to piece. Two warpgroups have 64 rows of either matrix each: codes go
// from shared memory to registers, become bf16 with their scales and are multiplied with activations in shared memory.
// A third one brings both there, a stage ahead: weights by the copy unit, activations, whose rows belong to any tokens,
// by cp.async. The columns of a row go in the same slices and steps of 16 columns as in the other kernels, so the bits
// are the same.
#pragma once

#include "ops/device/mma_fp8.cuh"
#include "ops/device/rows.cuh"
#include "ops/experts/moe_stream.cuh"

namespace fathom::ops::moe {

/// Shared memory. A stage: [matrix][128 rows][128 bytes] of codes, then activations of 256 columns (128 for fp8)
/// [64 columns][token][128 bytes], both in 128-byte swizzle.
struct ManyShared {
  std::byte* stages;
  std::byte* results;  // [token][128] bf16, rows padded
  ManyTable* tables;   // [kManyTables], of one piece of work after the other
  Phases *full, *empty;

  FATHOM_DEVICE explicit ManyShared(std::byte* shared) {
    stages = shared, results = stages + kManyStages * kManyStage;
    tables = reinterpret_cast<ManyTable*>(results + kManyTokens * kManyResultPitch);
    full = reinterpret_cast<Phases*>(tables + kManyTables), empty = full + kManyStages;
  }
};

/// Piece `index` of a kernel.
template <bool kDown>
struct ManyPiece {
  Work work;
  int first_row;
  bool exists, own;  // own: of the shared expert

  FATHOM_DEVICE ManyPiece(const Params& p, int index, int row_blocks) {
    work = find_work(p, index / row_blocks);
    first_row = index % row_blocks * (kDown ? 2 * kManyRows : kManyRows);
    own = work.tile.expert < 0, exists = first_row < weight(p, 0).rows;
  }
  FATHOM_DEVICE const Weight& weight(const Params& p, int matrix) const {
    if constexpr (kDown) return own ? p.s2 : p.w2;
    return matrix == 0 ? (own ? p.s1 : p.w1) : (own ? p.s3 : p.w3);
  }
  FATHOM_DEVICE const TensorMap* map(const Maps& m, int matrix) const {
    if constexpr (kDown) return own ? &m.s2 : &m.w2;
    return matrix == 0 ? (own ? &m.s1 : &m.w1) : (own ? &m.s3 : &m.w3);
  }
  FATHOM_DEVICE int row(int matrix) const { return first_row + (kDown ? matrix * kManyRows : 0); }
  FATHOM_DEVICE int stages(const Params& p) const {
    const int blocks = weight(p, 0).blocks;
    return own ? blocks : (blocks + 1) / 2;
  }
};

/// Slots, weights and rows of the tokens of a piece of work; by the warpgroup that brings things.
template <bool kDown>
FATHOM_DEVICE void fill_table(const Params& p, const Work& work, ManyTable& table, int thread) {
  if (thread >= work.tile.count) return;
  const int slot = slot_of(p, work, thread);
  const bool weighted = work.tile.expert >= 0;
  table.slot[thread] = slot;
  table.weight[thread] = weighted ? p.weight[slot / p.choices * p.weight_stride + slot % p.choices] : 1.0f;
  const int token = weighted ? slot / p.choices : slot - p.tokens * p.choices;
  table.row[thread] = kDown ? static_cast<uint32_t>(slot) * 2u * static_cast<uint32_t>(p.hidden_pitch)
                            : static_cast<uint32_t>(token) * 2u * static_cast<uint32_t>(p.d);
}

/// Brings stages of all pieces, one after the other. A stage is told to be there when the next one has been asked for.
template <bool kDown>
FATHOM_DEVICE void many_produce(const Params& p, const Maps& maps, const ManyShared& shared, int pieces,
                                int row_blocks) {
  constexpr int kThreads = 128;
  const int thread = device::thread_index() - 32 * kManyConsumers;
  int stage = 0, round = 0, before = -1, table = 0;
  const auto tell = [&] {
    device::publish_to_products();
    device::arrive(shared.full + before);
  };
  FATHOM_UNROLL_1
  for (int index = device::block_x(); index < pieces; index += device::grid_x()) {
    const ManyPiece<kDown> piece(p, index, row_blocks);
    if (!piece.exists) continue;
    const int stages = piece.stages(p), log2_chunks = piece.own ? 4 : 5, blocks = piece.weight(p, 0).blocks;
    const auto* from = reinterpret_cast<const std::byte*>(kDown       ? p.hidden
                                                          : piece.own ? p.x_wide + int64_t{p.tokens} * p.d
                                                                      : p.x_wide);
    const ManyTable& rows = shared.tables[table];
    FATHOM_UNROLL_1
    for (int s = 0; s < stages; ++s) {
      if (round > 0) device::await(shared.empty + stage, round - 1);
      if (s == 0) {  // not earlier: the table may have been that of a piece whose results are being stored
        fill_table<kDown>(p, piece.work, shared.tables[table], thread);
        device::sync_warpgroup(2);
      }
      std::byte* to = shared.stages + stage * kManyStage;
      if (thread == 0) {
        device::arrive_and_expect(shared.full + stage, kManyWeights);
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m)
          device::copy_box(to + m * (kManyWeights / 2), piece.map(maps, m), s * kLineBytes, piece.row(m),
                           piece.own ? 0 : piece.work.tile.expert, shared.full + stage);
      }
      const int left = (blocks - (piece.own ? s : 2 * s)) * 16, chunks = 1 << log2_chunks;  // of 16 bytes
      FATHOM_UNROLL_8
      for (int i = thread; i < piece.work.tile.count << log2_chunks; i += kThreads) {
        const int token = i >> log2_chunks, chunk = i & (chunks - 1);
        device::copy_async_16(
            to + kManyWeights + chunk / 8 * (kManyTokens * kLineBytes) + device::box_place(token, chunk % 8),
            from + rows.row[token] + (s << log2_chunks | chunk) * 16, chunk < left);
      }
      device::copy_async_commit();
      if (before >= 0) device::copy_async_wait<1>(), tell();
      before = stage;
      if (++stage == kManyStages) stage = 0, ++round;
    }
    table = (table + 1) % kManyTables;
  }
  if (before >= 0) device::copy_async_wait<0>(), tell();
}

/// What a consumer warp uses next, and what it has still to give back.
struct ManyRing {
  int stage = 0, round = 0, before = -1;

  FATHOM_DEVICE void release(const ManyShared& shared, int lane) {
    if (before < 0) return;
    device::sync_warp();
    if (lane == 0) device::arrive(shared.empty + before);
    before = -1;
  }
  FATHOM_DEVICE void advance() {
    before = stage;
    if (++stage == kManyStages) stage = 0, ++round;
  }
};

/// Scale bytes of this thread's codes in a unit: [matrix][row g, row g + 8].
template <ExpertFormat kFormat>
struct ManyScales {
  const uint8_t* from[2];
  int pitch;  // to row g + 8
  uint32_t byte[2][2] = {};

  FATHOM_DEVICE void load(int unit, int lane) {
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      if constexpr (kFormat == ExpertFormat::fp8) {
        byte[m][0] = byte[m][1] = from[m][unit / 2];
      } else {
        FATHOM_UNROLL
        for (int r = 0; r < 2; ++r) byte[m][r] = from[m][r * pitch + unit * 4 + lane % 4];
      }
    }
  }
  FATHOM_DEVICE uint32_t factor(int m, int r) const {
    return power_pair(byte[m][r], (is_fp4(kFormat) ? 126 : 120) - kHeadroom);
  }
};

/// The row of a warp's 16 that thread group g of the tensor core tile has: rows of neighbouring groups then lie in
/// other halves of the swizzled lines, so that reads of 16 bytes meet in no bank.
FATHOM_DEVICE int many_row(int group) {
  return (group & 1) << 2 | group >> 1;
}

/// total = 64 rows of both matrices times 8 kTiles tokens: register 4 j + i of column tile j as in mma_bf16.
template <ExpertFormat kFormat, bool kDown, int kTiles>
FATHOM_DEVICE void many_multiply(const Params& p, const ManyPiece<kDown>& piece, const ManyShared& shared,
                                 ManyRing& ring, int warp, int lane, float (&total)[2][4 * kTiles]) {
  constexpr bool kFp4 = is_fp4(kFormat);
  constexpr int kUnits = block_units(kFormat), kTurns = unit_steps(kFormat) / 2;
  const int row = warp * kGroupRows + many_row(lane / 4), blocks = piece.weight(p, 0).blocks, stages = piece.stages(p);
  const int log2_slices = kDown ? p.log2_down_slices : p.log2_up_slices;
  ManyScales<kFormat> scales;
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m) {
    const Weight& w = piece.weight(p, m);
    const int at = piece.row(m) + row;
    scales.from[m] = w.scale + (kFp4 ? piece.work.tile.expert * w.expert_scale + int64_t{at} * w.scale_row
                                     : int64_t{at / kBlock} * w.scale_row);
    scales.pitch = 8 * w.scale_row;
  }
  const int units = blocks * kUnits;
  scales.load(0, lane);
  float sum[2][4 * kTiles] = {};
  FATHOM_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) total[0][i] = total[1][i] = 0;
  int slice = 0, slice_end = first_block(blocks, log2_slices, 1) * kUnits;
  bool add = false;
  const auto fold = [&] {
    device::multiply_wait<0>();
    FATHOM_UNROLL
    for (int i = 0; i < 4 * kTiles; ++i) total[0][i] += sum[0][i], total[1][i] += sum[1][i];
    add = false;
  };
  FATHOM_UNROLL_1
  for (int s = 0; s < stages; ++s) {
    const std::byte* at = shared.stages + ring.stage * kManyStage;
    device::await(shared.full + ring.stage, ring.round);
    FATHOM_UNROLL_1
    for (int half = 0; half < 2; ++half) {  // of a line: a unit
      const int unit = 2 * s + half;
      if (unit >= units) break;
      if (unit == slice_end) {
        fold();
        slice_end = first_block(blocks, log2_slices, ++slice + 1) * kUnits;
      }
      uint32_t factor[2][2][2];
      Float4 codes[2][2];  // [matrix][row g, row g + 8]
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) {
        factor[i / 2][i % 2][0] = factor[i / 2][i % 2][1] = scales.factor(i / 2, i % 2);
        codes[i / 2][i % 2] = *reinterpret_cast<const Float4*>(
            at + i / 2 * (kManyWeights / 2) + i % 2 * (8 * kLineBytes) + device::box_place(row, half * 4 + lane % 4));
      }
      if (unit + 1 < units) scales.load(unit + 1, lane);
      // Two steps at a time: with more in one stretch the compiler lets products wait for each other.
      FATHOM_UNROLL_1
      for (int turn = 0; turn < kTurns; ++turn) {
        const auto x =
            device::describe_matrix(at + kManyWeights + (half * kTurns + turn) * (kManyTokens * kLineBytes), 16, 1024);
        FATHOM_UNROLL
        for (int step = 0; step < 2; ++step) {
          uint32_t a[2][2][4];
          FATHOM_UNROLL
          for (int i = 0; i < 4; ++i)
            decode_step<kFormat, false>(codes[i / 2][i % 2], factor[i / 2][i % 2], step, a[i / 2][i % 2]);
          device::multiply_begin();
          FATHOM_UNROLL
          for (int part = 0; part < 2; ++part) {  // 16 columns
            FATHOM_UNROLL
            for (int m = 0; m < 2; ++m) {
              const uint32_t quad[4] = {a[m][0][2 * part], a[m][1][2 * part], a[m][0][2 * part + 1],
                                        a[m][1][2 * part + 1]};
              device::multiply_rows_bf16<kTiles>(sum[m], quad, device::behind(x, (2 * step + part) * 32),
                                                 add || part > 0);
            }
          }
          device::multiply_commit();
          add = true;
          device::multiply_wait<1>();  // registers of the step before, and what the stage before held
          if (half == 0 && turn == 0 && step == 0) ring.release(shared, lane);
        }
        FATHOM_UNROLL
        for (int i = 0; i < 4; ++i)
          codes[i / 2][i % 2].x = codes[i / 2][i % 2].z, codes[i / 2][i % 2].y = codes[i / 2][i % 2].w;
      }
    }
    ring.advance();
  }
  fold();
  ring.release(shared, lane);
}

/// Calls `visit(value index, row of the 128, token)` for what a thread has of tokens that exist.
template <int kTiles, typename Visit>
FATHOM_DEVICE void for_many(int tokens, int warp, int lane, const Visit& visit) {
  FATHOM_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (token < tokens) visit(i, warp * kGroupRows + many_row(lane / 4) + i % 4 / 2 * 8, token);
  }
}

/// Hidden rows of 128 channels, quantised and in the order of the next products.
template <ExpertFormat kFormat, int kTiles>
FATHOM_DEVICE void many_hidden(const Params& p, const ManyPiece<false>& piece, const ManyTable& table,
                               std::byte* results, int warp, int lane, const float (&total)[2][4 * kTiles]) {
  const int tokens = piece.work.tile.count, expert = piece.work.tile.expert;
  const float gate = restore<kFormat>(piece.weight(p, 0), expert), up = restore<kFormat>(piece.weight(p, 1), expert);
  for_many<kTiles>(tokens, warp, lane, [&](int i, int row, int token) {
    const float v =
        hidden_value(total[0][i] * gate, total[1][i] * up, p.limit, table.weight[token], kFormat != ExpertFormat::fp8);
    reinterpret_cast<bf16*>(results + token * kManyResultPitch)[row] = to_bf16(v);
  });
  device::sync_first<32 * kManyConsumers>();
  FATHOM_UNROLL_1
  for (int first = 2 * warp; first < tokens; first += 2 * kManyConsumers) {
    const bool mine = first + lane / 16 < tokens;
    const int token = mine ? first + lane / 16 : tokens - 1;
    const auto* from = reinterpret_cast<const Float4*>(results + token * kManyResultPitch);
    const Words4 words = quantized_words(from[lane % 16]);
    auto* to = reinterpret_cast<std::byte*>(p.hidden + int64_t{table.slot[token]} * p.hidden_pitch + piece.first_row);
    if (mine) store_many(to, lane % 16, kFormat == ExpertFormat::fp8, words);
  }
  device::sync_first<32 * kManyConsumers>();
}

/// Results of an expert, 2 x 128 rows.
template <ExpertFormat kFormat, int kTiles>
FATHOM_DEVICE void many_part(const Params& p, const ManyPiece<true>& piece, const ManyTable& table, std::byte* results,
                             int warp, int lane, const float (&total)[2][4 * kTiles]) {
  const int tokens = piece.work.tile.count;
  const float factor = restore<kFormat>(piece.weight(p, 0), piece.work.tile.expert);
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m) {
    for_many<kTiles>(tokens, warp, lane, [&](int i, int row, int token) {
      reinterpret_cast<bf16*>(results + token * kManyResultPitch)[row] = to_bf16(total[m][i] * factor);
    });
    device::sync_first<32 * kManyConsumers>();
    FATHOM_UNROLL_1
    for (int i = device::thread_index(); i < tokens * 16; i += 32 * kManyConsumers) {
      const int token = i / 16;
      reinterpret_cast<Float4*>(p.part + int64_t{table.slot[token]} * p.d + piece.row(m))[i % 16] =
          reinterpret_cast<const Float4*>(results + token * kManyResultPitch)[i % 16];
    }
    device::sync_first<32 * kManyConsumers>();
  }
}

template <ExpertFormat kFormat, bool kDown, int kTiles>
FATHOM_DEVICE void many_piece(const Params& p, const ManyPiece<kDown>& piece, const ManyTable& table,
                              const ManyShared& shared, ManyRing& ring, int warp, int lane) {
  float total[2][4 * kTiles];
  many_multiply<kFormat, kDown, kTiles>(p, piece, shared, ring, warp, lane, total);
  if constexpr (kDown)
    many_part<kFormat, kTiles>(p, piece, table, shared.results, warp, lane, total);
  else
    many_hidden<kFormat, kTiles>(p, piece, table, shared.results, warp, lane, total);
}

/// Grid: as many blocks as multiprocessors. `kDown`: w2 instead of w1 and w3; tiles of up to 8 kTiles tokens.
template <bool kDown, int kTiles>
FATHOM_DEVICE void many_block(const Params& p, const Maps& maps, std::byte* memory) {
  const ManyShared shared(memory);
  const int warp = device::uniform(device::warp_index()), lane = device::lane_index();
  if (device::thread_index() == 0) {
    FATHOM_UNROLL
    for (int i = 0; i < kManyStages; ++i) {
      device::init_phases(shared.full + i, 128 + 1);
      device::init_phases(shared.empty + i, kManyConsumers);
    }
    device::publish_phases();
  }
  device::sync_block();
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int row_blocks = kDown ? p.d / (2 * kManyRows) : p.hidden_pitch / kManyRows;
  const int pieces = (p.shared_tiles + static_cast<int>(device::load_l2(p.tile_count))) * row_blocks;
  if (warp >= kManyConsumers) {
    device::give_registers<56>();
    return many_produce<kDown>(p, maps, shared, pieces, row_blocks);
  }
  device::take_registers<224>();
  ManyRing ring;
  int table = 0;
  FATHOM_UNROLL_1
  for (int index = device::block_x(); index < pieces; index += device::grid_x()) {
    const ManyPiece<kDown> piece(p, index, row_blocks);
    if (!piece.exists) continue;
    if (piece.own)
      many_piece<ExpertFormat::fp8, kDown, kTiles>(p, piece, shared.tables[table], shared, ring, warp, lane);
    else
      many_piece<ExpertFormat::mxfp4, kDown, kTiles>(p, piece, shared.tables[table], shared, ring, warp, lane);
    table = (table + 1) % kManyTables;
  }
}

}  // namespace fathom::ops::moe
