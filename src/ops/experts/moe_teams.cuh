// The expert kernels for sm_90 by fp8 products of warpgroups (MXFP4, codes in the order of bytes): teams of two
// warpgroups stream weights without a pause, from one piece of work to the next.
//
// A piece of work is 128 rows of w1 with the same rows of w3 (256 rows of w2), all columns, times one tile. A warp of
// its own takes the pieces of a team, one ahead, and asks for 128 bytes of these rows at a time, with the activations
// of the tile, which lie as codes in the order in which the products want them. Codes of weights become e5m2 on their
// way through registers, five instructions for eight; those of the shared expert go to the products as they are. The
// hardware drops bits below about 2^-13 of the largest of 32 products, so sums of 32 columns are scaled and added in
// fp32. A team has all channels that share the scale of a hidden row: it quantises them itself. Nothing in these
// kernels waits for another block; one more kernel adds the experts of a token.
#pragma once

#include <type_traits>

#include "ops/device/mma_fp8.cuh"
#include "ops/experts/moe_kernel.cuh"
#include "ops/experts/moe_maps.h"

namespace fathom::ops::moe {

using device::Phases;

/// What a team does: a tile, and the first of its rows. expert: -1 the shared one, kNothing: no more pieces.
struct TeamPiece {
  static constexpr int kNothing = -2;
  int expert, count, index, first_row;
  int slot[kTeamTokens];  // of the tile's tokens
  float weight[kTeamTokens];
};

/// What a team shares, in the block's shared memory.
struct TeamMemory {
  std::byte *weights, *x;            // rings
  int x_pitch;                       // of a stage
  float* most;                       // [2][kTeamTokens][8]: the largest hidden value of each warp
  TeamPiece* piece;                  // [2]
  Phases *full, *empty;              // [kTeamStages]
  Phases *piece_full, *piece_empty;  // [2]

  /// `tokens`: of a tile of routed experts.
  FATHOM_DEVICE TeamMemory(std::byte* shared, int team, int tokens) {
    weights = shared + team * (kTeamStages * kTeamStage), x_pitch = team_x_pitch(tokens);
    x = shared + kTeamX + team * (kTeamStages * x_pitch);
    std::byte* rest = shared + team_rest(tokens) + team * kTeamRestBytes;
    full = reinterpret_cast<Phases*>(rest), empty = full + kTeamStages;
    piece_full = empty + kTeamStages, piece_empty = piece_full + 2;
    most = reinterpret_cast<float*>(rest + 128);
    piece = reinterpret_cast<TeamPiece*>(most + 2 * kTeamTokens * 8);
  }
};
static_assert(128 + 2 * kTeamTokens * 8 * sizeof(float) + 2 * sizeof(TeamPiece) <= kTeamRestBytes);

/// A place in a ring of `count`.
struct RingPlace {
  int at = 0, round = 0;
  FATHOM_DEVICE void advance(int count) {
    if (++at == count) at = 0, ++round;
  }
};

/// The kernels' own barrier of a team's eight warps.
FATHOM_DEVICE void sync_team(int team) {
  device::sync_half<256>(team);
}

/// Pieces of a kernel, those of the shared expert first, and how they are handed out: the first of each team by its
/// place, then by a counter.
struct TeamPieces {
  int shared_groups, groups, rows, shared, all;  // groups of `rows` rows of a tile; pieces
  uint32_t* taken;

  FATHOM_DEVICE TeamPieces(const Params& p, int shared_rows, int routed_rows, int rows_of, uint32_t* counter)
      : shared_groups(shared_rows / rows_of), groups(routed_rows / rows_of), rows(rows_of), taken(counter) {
    shared = p.shared_tiles * shared_groups;
    all = shared + static_cast<int>(device::load_l2(p.tile_count)) * groups;
  }
};

/// Where the activations of a tile lie; `w`, `s`: matrices of routed and of the shared expert with as many columns.
FATHOM_DEVICE std::byte* tile_codes(std::byte* tiles, const Params& p, const Weight& w, const Weight& s, int index) {
  const int of_shared = index < p.shared_tiles ? index : p.shared_tiles;
  return tiles + int64_t{of_shared} * s.blocks * kSharedXBytes +
         int64_t{index - of_shared} * (w.blocks / 2) * team_x_bytes(p.tile_tokens);
}

/// What is known of the next piece: its steps, each a load that the one before must have brought, are spread over the
/// stages of the present one. Lane n has token n of the tile.
struct NextPiece {
  int step = 0, number = 0, first = 0, slot = 0;
  int expert = TeamPiece::kNothing, count = 0, index = 0, first_row = 0;
  float weight = 1;

  static constexpr int kSteps = 4;
  FATHOM_DEVICE void advance(const Params& p, const TeamPieces& pieces, int lane) {
    if (step == 0) {
      if (lane == 0) number = kTeams * device::grid_x() + static_cast<int>(device::atomic_add(pieces.taken, 1u));
    } else if (step == 1) {
      number = device::shuffle_int(number, 0);
      find(p, pieces);
    } else if (step == 2) {
      if (lane < count && expert >= 0)
        slot = static_cast<int>(device::load_l2(reinterpret_cast<const uint32_t*>(p.sorted) + first + lane));
      else
        slot = p.tokens * p.choices + first + lane;
    } else if (step == 3) {
      if (lane < count && expert >= 0) weight = p.weight[slot / p.choices * p.weight_stride + slot % p.choices];
    }
    if (step < kSteps) ++step;
  }
  FATHOM_DEVICE void find(const Params& p, const TeamPieces& pieces) {
    int n = number;
    expert = TeamPiece::kNothing, count = 0;
    if (n >= pieces.all) return;
    if (n < pieces.shared) {
      index = n / pieces.shared_groups, first_row = n % pieces.shared_groups * pieces.rows;
      const Tile tile = shared_work(p, index).tile;
      expert = -1, first = tile.first, count = tile.count;
      return;
    }
    n -= pieces.shared;
    const int tile = n / pieces.groups;
    const Float4 v = device::load_l2(reinterpret_cast<const Float4*>(p.tile + tile));
    expert = static_cast<int>(word(v.x)), first = static_cast<int>(word(v.y)), count = static_cast<int>(word(v.z));
    index = p.shared_tiles + tile, first_row = n % pieces.groups * pieces.rows;
  }
  FATHOM_DEVICE void put(TeamPiece& to, int lane) const {
    if (lane == 0) to.expert = expert, to.count = count, to.index = index, to.first_row = first_row;
    if (lane < count) to.slot[lane] = slot, to.weight[lane] = weight;
  }
};

/// The warp that asks. `source(next)`: maps and rows of a piece, where its activations lie, and how many stages it has;
/// `wait()` comes before the first activations.
struct TeamSource {
  const TensorMap* map[2];
  const std::byte* x;
  int row[2], stages;
};
template <typename Source, typename Wait>
FATHOM_DEVICE void bring_pieces(const Params& p, const TeamPieces& pieces, const TeamMemory& m, int team, int lane,
                                const Source& source, const Wait& wait) {
  RingPlace ring;
  bool early = true;
  NextPiece next;
  next.number = team * device::grid_x() + device::block_x(), next.step = 1;
  for (int turn = 0;; ++turn) {
    while (next.step < NextPiece::kSteps) next.advance(p, pieces, lane);
    if (turn >= 2) device::await(m.piece_empty + turn % 2, turn / 2 - 1);
    next.put(m.piece[turn % 2], lane);
    device::arrive(m.piece_full + turn % 2);
    if (next.expert == TeamPiece::kNothing) break;
    const TeamSource from = source(next);
    const int plane = next.expert < 0 ? 0 : next.expert;
    const int x_bytes = next.expert < 0 ? kSharedXBytes : team_x_bytes(p.tile_tokens);
    next.step = 0;
    const auto weights = [&](int i, int at) {
      device::arrive_and_expect(m.full + at, kTeamStage + x_bytes);
      FATHOM_UNROLL
      for (int k = 0; k < 2; ++k)
        device::copy_weight_box(m.weights + at * kTeamStage + k * kTeamMatrix, from.map[k], i * kLineBytes, from.row[k],
                                plane, m.full + at);
    };
    const auto x = [&](int i, int at) {
      device::copy_block(m.x + at * m.x_pitch, from.x + i * x_bytes, x_bytes, m.full + at);
    };
    int i = 0;
    if (early) {  // nobody has used the ring
      early = false;
      const int first = from.stages < kTeamStages ? from.stages : kTeamStages;
      if (lane == 0)
        for (int k = 0; k < first; ++k) weights(k, k);
      wait();
      if (lane == 0)
        for (int k = 0; k < first; ++k) x(k, k);
      for (; i < first; ++i) ring.advance(kTeamStages);
    }
    for (; i < from.stages; ++i) {
      if (ring.round > 0) device::await(m.empty + ring.at, ring.round - 1);
      if (lane == 0) weights(i, ring.at), x(i, ring.at);
      device::sync_warp();
      ring.advance(kTeamStages);
      next.advance(p, pieces, lane);
    }
  }
  if (early) wait();
}

/// A warp that multiplies: of 2 x 64 rows of a piece it has 16 each.
struct TeamWarp {
  int team, warp, lane;                                                   // warp of the team
  FATHOM_DEVICE int row() const { return warp * kGroupRows + lane / 4; }  // and row() + 8
};

/// Scales of a stage for rows g and g + 8 of this warp's 16, of two matrices: a byte for each group of 32 columns.
struct TeamScales {
  uint32_t low[2][2], high[2][2];  // [matrix][half of the stage]

  FATHOM_DEVICE void load(const uint8_t* const (&row)[2], int pitch, int stage, int matrix, int half) {
    const uint8_t* at = row[matrix] + stage * 8 + half * 4;
    low[matrix][half] = *reinterpret_cast<const uint32_t*>(at);
    high[matrix][half] = *reinterpret_cast<const uint32_t*>(at + pitch);
  }
};

/// Sums of 2 x 128 rows and 8 kTiles tokens: register 4 j + i of column tile j as in mma_bf16.
template <int kTiles>
struct TeamSums {
  float total[2][4 * kTiles] = {};
};

/// Scales of the tokens that a lane has in a block: of columns 2 t and 2 t + 1 of each eight.
template <int kTiles>
FATHOM_DEVICE void load_factors(float (&factor)[2 * kTiles], const std::byte* from, const TeamWarp& t) {
  const auto* of = reinterpret_cast<const float*>(from) + t.lane % 4 * 2;
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) factor[2 * j] = of[8 * j], factor[2 * j + 1] = of[8 * j + 1];
}

/// One stage of routed experts: 256 columns of both matrices. `used(m, u)`: half u of the scales of matrix m is free.
template <int kTiles, typename Used>
FATHOM_DEVICE void routed_stage(TeamSums<kTiles>& sums, const TeamMemory& memory, const TeamWarp& t, int stage,
                                const TeamScales& scales, const Used& used) {
  constexpr int kBatch = 4 / kTiles, kBatches = 16 / kBatch;  // groups that are multiplied at once, of one matrix
  const std::byte* weights = memory.weights + stage * kTeamStage + t.warp * (kGroupRows * kLineBytes);
  const std::byte* x = memory.x + stage * team_x_pitch(8 * kTiles);
  const auto columns = device::describe_plain_matrix(x, 128, kTeamEight);
  float sum[2][kBatch][4 * kTiles];
  uint32_t a[2][kBatch][4];
  // First of all: what is read just before the stage is given back can be overwritten under way, as the barrier does
  // not wait for loads whose values nobody has used.
  float both[2][2 * kTiles];
  FATHOM_UNROLL
  for (int u = 0; u < 2; ++u) load_factors<kTiles>(both[u], x + kTiles * kTeamEight + u * (8 * kTiles * 4), t);
  const auto add = [&](int b) {
    const int u = b * kBatch / 8, m = b * kBatch / 4 % 2, first = b * kBatch % 4;
    float part[4 * kTiles];
    const float(&factor)[2 * kTiles] = both[u];
    FATHOM_UNROLL
    for (int g = 0; g < kBatch; ++g) {
      const float scale[2] = {group_scale(scales.low[m][u], first + g), group_scale(scales.high[m][u], first + g)};
      FATHOM_UNROLL
      for (int i = 0; i < 4 * kTiles; ++i) {
        const float v = sum[b % 2][g][i], s = scale[i % 4 / 2];
        part[i] = g == 0 ? v * s : fmaf(v, s, part[i]);
      }
    }
    FATHOM_UNROLL
    for (int i = 0; i < 4 * kTiles; ++i) sums.total[m][i] = fmaf(part[i], factor[i / 4 * 2 + i % 2], sums.total[m][i]);
    if (first + kBatch == 4) used(m, u);
  };
  FATHOM_UNROLL
  for (int b = 0; b < kBatches; ++b) {
    const int u = b * kBatch / 8, m = b * kBatch / 4 % 2, first = b * kBatch % 4;
    FATHOM_UNROLL
    for (int pair = 0; pair < kBatch / 2; ++pair) {
      uint32_t words[4];
      device::load_matrices(
          words, weights + m * kTeamMatrix + device::box_place(t.lane % 16, u * 4 + first + pair * 2 + t.lane / 16));
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[b % 2][2 * pair + i / 2][i % 2] = fp4_bytes(words[i], 0);
        a[b % 2][2 * pair + i / 2][2 + i % 2] = fp4_bytes(words[i], 1);
      }
    }
    device::multiply_begin();
    FATHOM_UNROLL
    for (int g = 0; g < kBatch; ++g)
      device::multiply_rows_e5m2<kTiles>(sum[b % 2][g], a[b % 2][g],
                                         device::behind(columns, (u * 4 + first + g) * 256));
    device::multiply_commit();
    if (b > 0) {
      device::multiply_wait<1>();
      add(b - 1);
    }
  }
  device::multiply_wait<0>();
  add(kBatches - 1);
}

/// One stage of the shared expert: 128 columns. `scale`: of the weights.
FATHOM_DEVICE void shared_stage(TeamSums<2>& sums, const TeamMemory& memory, const TeamWarp& t, int stage,
                                const float (&scale)[2]) {
  const std::byte* x = memory.x + stage * memory.x_pitch;
  const auto columns = device::describe_plain_matrix(x, 128, kTeamEight / 2);
  const auto rows =
      device::describe_matrix(memory.weights + stage * kTeamStage + t.warp / 4 * (64 * kLineBytes), 16, 1024);
  float of_token[4], factor[2][4];
  load_factors<2>(of_token, x + kTeamEight, t);
  FATHOM_UNROLL
  for (int k = 0; k < 8; ++k) factor[k / 4][k % 4] = of_token[k % 4] * scale[k / 4];
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    float sum[2][8];
    device::multiply_begin();
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m)
      device::multiply_64_rows_e4m3<2>(sum[m], device::behind(rows, m * kTeamMatrix + i * 32),
                                       device::behind(columns, i * 256), false);
    device::multiply_commit();
    device::multiply_wait<0>();
    FATHOM_UNROLL
    for (int k = 0; k < 16; ++k)
      sums.total[k / 8][k % 8] =
          fmaf(sum[k / 8][k % 8], factor[k / 8][k % 8 / 4 * 2 + k % 2], sums.total[k / 8][k % 8]);
  }
}

/// Where the scales of a piece are: of row `row` of both matrices.
FATHOM_DEVICE void find_scales(const uint8_t* (&scale)[2], const Weight& a, const Weight& b, int expert, int row_a,
                               int row_b) {
  scale[0] = a.scale + expert * a.expert_scale + int64_t{row_a} * a.scale_row;
  scale[1] = b.scale + expert * b.expert_scale + int64_t{row_b} * b.scale_row;
}

/// The products of a warp, piece by piece. `second`: how many rows behind those of the first matrix the rows of the
/// second are; `end(piece, sums, turn, whether it is of a
/// routed expert)` takes the sums.
template <int kTiles, typename End>
FATHOM_DEVICE void multiply_pieces(const TeamMemory& m, const TeamWarp& t, const Weight& a, const Weight& b,
                                   const Weight& shared_a, const Weight& shared_b, int second, const End& end) {
  RingPlace ring;
  TeamScales scales;
  bool loaded = false;  // the first scales of the piece
  const auto leave = [&] {
    device::arrive(m.empty + ring.at);
    ring.advance(kTeamStages);
  };
  FATHOM_UNROLL_1
  for (int turn = 0;; ++turn) {
    device::await(m.piece_full + turn % 2, turn / 2);
    const TeamPiece& piece = m.piece[turn % 2];
    const int expert = piece.expert, first_row = piece.first_row;
    if (expert == TeamPiece::kNothing) break;
    if (expert < 0) {
      TeamSums<2> sums;
      const uint8_t* scale[2];
      find_scales(scale, shared_a, shared_b, 0, first_row / kBlock, (first_row + second) / kBlock);
      FATHOM_UNROLL_1
      for (int i = 0; i < shared_a.blocks; ++i) {
        const float factor[2] = {to_float(e8m0{scale[0][i]}), to_float(e8m0{scale[1][i]})};
        device::await(m.full + ring.at, ring.round);
        shared_stage(sums, m, t, ring.at, factor);
        leave();
      }
      end(piece, sums, turn % 2, std::false_type{});
    } else {
      TeamSums<kTiles> sums;
      const uint8_t* scale[2];
      find_scales(scale, a, b, expert, first_row + t.row(), first_row + second + t.row());
      const int pitch = 8 * a.scale_row;
      if (!loaded) {
        FATHOM_UNROLL
        for (int k = 0; k < 4; ++k) scales.load(scale, pitch, 0, k % 2, k / 2);
      }
      const int stages = a.blocks / 2;
      FATHOM_UNROLL_1
      for (int i = 0; i < stages; ++i) {
        int next = i + 1;
        if (next == stages) {  // scales of the next piece; where they are not wanted, some that are there
          device::await(m.piece_full + (turn + 1) % 2, (turn + 1) / 2);
          const TeamPiece& other = m.piece[(turn + 1) % 2];
          const int row = other.first_row + t.row(), e = other.expert;
          loaded = e >= 0, next = loaded ? 0 : i;
          if (loaded) find_scales(scale, a, b, e, row, row + second);
        }
        device::await(m.full + ring.at, ring.round);
        routed_stage(sums, m, t, ring.at, scales,
                     [&](int matrix, int half) { scales.load(scale, pitch, next, matrix, half); });
        leave();
      }
      end(piece, sums, turn % 2, std::true_type{});
    }
    device::arrive(m.piece_empty + turn % 2);
  }
}

/// Starts a kernel: barriers, at which each lane arrives for itself. All threads.
template <int kTiles>
FATHOM_DEVICE void begin_teams(std::byte* shared) {
  if (device::thread_index() < kTeams) {
    const TeamMemory m(shared, device::thread_index(), 8 * kTiles);
    for (int i = 0; i < kTeamStages; ++i) device::init_phases(m.full + i, 1), device::init_phases(m.empty + i, 256);
    for (int i = 0; i < 2; ++i) device::init_phases(m.piece_full + i, 32), device::init_phases(m.piece_empty + i, 256);
    device::publish_phases();
  }
  device::sync_block();
}

/// Where the code of channel `channel` of token `token` of a tile lies, and the scale of its block.
template <bool kRouted>
FATHOM_DEVICE int hidden_place(const Params& p, int channel, int token) {
  if constexpr (!kRouted)
    return channel / kBlock * kSharedXBytes + shared_place(channel / 16 % 8, token) + channel % 16;
  return channel / 256 * team_x_bytes(p.tile_tokens) + team_place(channel / 32 % 8, channel / 4 % 2, token) +
         channel / 8 % 4 * 4 + channel % 4;
}
template <bool kRouted>
FATHOM_DEVICE int scale_place(const Params& p, int block, int token) {
  if constexpr (!kRouted) return block * kSharedXBytes + kTeamEight + token * 4;
  return block / 2 * team_x_bytes(p.tile_tokens) + p.tile_tokens * 2 * kBlock + (block % 2 * p.tile_tokens + token) * 4;
}

/// Calls `visit(j, odd, token)` for the tokens of a tile that a lane has sums of.
template <int kTiles, typename Visit>
FATHOM_DEVICE void for_own_tokens(const TeamWarp& t, int count, const Visit& visit) {
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    FATHOM_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      const int token = 8 * j + t.lane % 4 * 2 + odd;
      if (token < count) visit(j, odd, token);
    }
  }
}

/// Hidden values of a piece, quantised to the tile's codes.
template <bool kRouted, int kTiles>
FATHOM_DEVICE void end_up(const Params& p, const TeamMemory& m, const TeamWarp& t, const TeamPiece& piece,
                          const TeamSums<kTiles>& sums, int turn) {
  constexpr float kRestore = kRouted ? kBytesRestore : 1.0f;
  float h[4 * kTiles];
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    FATHOM_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      const int token = 8 * j + t.lane % 4 * 2 + odd;
      const float weight = token < piece.count ? piece.weight[token] : 1.0f;
      FATHOM_UNROLL
      for (int high = 0; high < 2; ++high) {
        const int i = 4 * j + 2 * high + odd;
        h[i] = round_bf16(
            hidden_value(sums.total[0][i] * kRestore, sums.total[1][i] * kRestore, p.limit, weight, kRouted));
      }
      float most = fmaxf(fabsf(h[4 * j + odd]), fabsf(h[4 * j + 2 + odd]));
      for (int mask = 4; mask < 32; mask *= 2) most = fmaxf(most, device::shuffle_xor(most, mask));
      if (t.lane < 4) m.most[(turn * kTeamTokens + token) * 8 + t.warp] = most;
    }
  }
  sync_team(t.team);
  std::byte* to = tile_codes(p.hidden_tiles, p, p.w2, p.s2, piece.index);
  for_own_tokens<kTiles>(t, piece.count, [&](int j, int odd, int token) {
    const auto* of = reinterpret_cast<const Float4*>(m.most + (turn * kTeamTokens + token) * 8);
    const Float4 low = of[0], high = of[1];
    const e8m0 scale = e4m3_scale(
        fmaxf(fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)), fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w))));
    const float inverse = reciprocal(scale);
    const uint32_t codes = device::pack_e4m3x2(h[4 * j + odd] * inverse, h[4 * j + 2 + odd] * inverse);
    const int channel = piece.first_row + t.row();
    to[hidden_place<kRouted>(p, channel, token)] = static_cast<std::byte>(codes);
    to[hidden_place<kRouted>(p, channel + 8, token)] = static_cast<std::byte>(codes >> 8);
    if (t.warp > 0 || t.lane >= 4) return;
    *reinterpret_cast<float*>(to + scale_place<kRouted>(p, piece.first_row / kBlock, token)) = to_float(scale);
  });
}

template <bool kRouted, int kTiles>
FATHOM_DEVICE void end_down(const Params& p, const TeamWarp& t, const TeamPiece& piece, const TeamSums<kTiles>& sums) {
  constexpr float kRestore = kRouted ? kBytesRestore : 1.0f;
  for_own_tokens<kTiles>(t, piece.count, [&](int j, int odd, int token) {
    bf16* to = p.part + int64_t{piece.slot[token]} * p.d + piece.first_row + t.row();
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k)
      to[k / 2 * kBlock + k % 2 * 8] = to_bf16(sums.total[k / 2][4 * j + k % 2 * 2 + odd] * kRestore);
  });
}

/// Grid: as many blocks as multiprocessors.
template <int kTiles>
FATHOM_DEVICE void team_up(const Params& p, const Maps& maps, std::byte* shared) {
  begin_teams<kTiles>(shared);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int warp = device::uniform(device::warp_index()), lane = device::lane_index();
  const int team = warp < 8 * kTeams ? warp / 8 : warp - 8 * kTeams;
  const TeamMemory memory(shared, team, 8 * kTiles);
  if (warp < 8 * kTeams) {
    device::take_registers<kTeamRegisters>();
    const TeamWarp t{team, warp % 8, lane};
    return multiply_pieces<kTiles>(memory, t, p.w1, p.w3, p.s1, p.s3, 0,
                                   [&](const TeamPiece& piece, const auto& sums, int turn, auto routed) {
                                     end_up<decltype(routed)::value>(p, memory, t, piece, sums, turn);
                                   });
  }
  device::give_registers<kAskRegisters>();
  if (team >= kTeams) return;
  const TeamPieces pieces(p, p.s1.rows, p.w1.rows, kBlock, p.arrivals + p.counters - 2);
  bring_pieces(
      p, pieces, memory, team, lane,
      [&](const NextPiece& n) -> TeamSource {
        return {{n.expert < 0 ? &maps.s1 : &maps.w1, n.expert < 0 ? &maps.s3 : &maps.w3},
                tile_codes(p.x_tiles, p, p.w1, p.s1, n.index),
                {n.first_row, n.first_row},
                n.expert < 0 ? p.s1.blocks : p.w1.blocks / 2};
      },
      [] {});
}

/// Grid: as many blocks as multiprocessors. Tiles are known, and weights may be read, before the kernel before ends.
template <int kTiles>
FATHOM_DEVICE void team_down(const Params& p, const Maps& maps, std::byte* shared) {
  begin_teams<kTiles>(shared);
  const int warp = device::uniform(device::warp_index()), lane = device::lane_index();
  const int team = warp < 8 * kTeams ? warp / 8 : warp - 8 * kTeams;
  const TeamMemory memory(shared, team, 8 * kTiles);
  const auto wait = [] {
    device::wait_for_previous_kernel();  // the hidden rows
    device::let_next_kernel_start();
  };
  if (warp < 8 * kTeams) {
    device::take_registers<kTeamRegisters>();
    wait();
    const TeamWarp t{team, warp % 8, lane};
    return multiply_pieces<kTiles>(memory, t, p.w2, p.w2, p.s2, p.s2, kBlock,
                                   [&](const TeamPiece& piece, const auto& sums, int, auto routed) {
                                     end_down<decltype(routed)::value>(p, t, piece, sums);
                                   });
  }
  device::give_registers<kAskRegisters>();
  if (team >= kTeams) return;
  const TeamPieces pieces(p, p.s2.rows, p.w2.rows, 2 * kBlock, p.arrivals + p.counters - 1);
  bring_pieces(
      p, pieces, memory, team, lane,
      [&](const NextPiece& n) -> TeamSource {
        const TensorMap* map = n.expert < 0 ? &maps.s2 : &maps.w2;
        return {{map, map},
                tile_codes(p.hidden_tiles, p, p.w2, p.s2, n.index),
                {n.first_row, n.first_row + kBlock},
                n.expert < 0 ? p.s2.blocks : p.w2.blocks / 2};
      },
      wait);
}

}  // namespace fathom::ops::moe
