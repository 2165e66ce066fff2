// The streaming product kernel (sm_90a): e4m3 weights times one to many tokens.
//
// Eight consumer warps have 16 rows of the tile each. The copy unit brings 128 columns of them at a time to a ring of
// the warp, which asks for the next box itself as soon as it has read one. From there codes go to registers, become
// fp16 or bf16 and are multiplied by warpgroups with x out of shared memory. The other warps bring x there, 128 columns
// a stage, in the order in which ldmatrix leaves codes in the threads. The fp8 tensor cores of sm_90 are not used: they
// keep about 13 bits below the largest term of a sum.
#pragma once

#include <bit>
#include <cmath>

#include "ops/device/e4m3_decode.h"
#include "ops/device/gpu.cuh"
#include "ops/device/mma_fp8.cuh"
#include "ops/linear/stream_params.h"

namespace fathom::ops::stream {

using device::Float4;
using device::Phases;

/// bf16 sums carry 2^-kHeadroom, so that weights with scales from 2^-94 to 2^39 are exact in bf16.
inline constexpr int kHeadroom = 32;

/// Shared memory. While products run: x [stage][half of 64 columns][token][128 bytes] in 128-byte swizzle; x as it
/// comes [producer][stage][half of a bf16 unit][16 tokens][128]; rings [warp][stage][16 rows][128]; scales of x times
/// those of weights, bf16 [stage][token]. Then sums in their place.
template <Input kInput, int kTiles>
struct Staging {
  static constexpr int kTokens = tokens_of(kTiles), kHalf = kTokens * 128, kInputBytes = input_bytes(kInput, kTiles);
  Phases *received, *full, *empty, *came, *arrived;  // sums; [x stage]; [x stage]; [producer][stage]; [warp][stage]
  bf16* scales;
  std::byte *x, *inputs, *rings;

  FATHOM_DEVICE Staging(const Params& p, std::byte* shared) {
    received = reinterpret_cast<Phases*>(shared);
    full = received + 1, empty = full + p.x_stages, came = empty + p.x_stages;
    arrived = came + producers(kTiles) * kInputStages;
    scales = reinterpret_cast<bf16*>(arrived + kConsumers * p.stages);
    x = shared + kHeader, inputs = x + p.x_stages * 2 * kHalf;
    rings = inputs + producers(kTiles) * kInputStages * kInputBytes;
  }
  FATHOM_DEVICE float* sums() const { return reinterpret_cast<float*>(x); }
};

/// Where a block stands.
struct Place {
  int warp, lane, part, row;  // first row of the tile within its part
  int tile_rows;
  int first_token, tokens;

  FATHOM_DEVICE Place(const Params& p, int token_tile) {
    warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32;
    const int pair = p.paired ? 1 : 0, tile = device::block_z();
    tile_rows = kTileRows >> pair;
    part = 0;
    while (part + 1 < p.parts && tile >= p.part[part + 1].first_tile << pair) ++part;
    row = (tile - (p.part[part].first_tile << pair)) * tile_rows;
    first_token = device::block_y() * token_tile;
    tokens = p.tokens - first_token < token_tile ? p.tokens - first_token : token_tile;
  }
  FATHOM_DEVICE const uint8_t* weight_scale(const Params& p) const {
    return p.part[part].scale + row / kTileRows * p.part[part].scale_stride;
  }
};

/// The units of a warpgroup of consumers. In a pair, that of warpgroup 1 follows that of warpgroup 0.
struct Slice {
  int begin, count;
  FATHOM_DEVICE Slice(const Params& p, int warpgroup) {
    const int slice = p.paired ? 2 * device::block_x() + warpgroup : device::block_x();
    begin = first_unit(p.units, p.log2_slices, slice);
    count = first_unit(p.units, p.log2_slices, slice + 1) - begin;
  }
};

FATHOM_DEVICE uint32_t word(float v) {
  return std::bit_cast<uint32_t>(v);
}
FATHOM_DEVICE float from_word(uint32_t v) {
  return std::bit_cast<float>(v);
}

/// The ring of a consumer warp.
struct Ring {
  std::byte* base;
  Phases* arrived;
  const device::TensorMap* map;
  int row;
  int stage = 0, round = 0;

  /// Asks for a unit of the matrix, all lanes together; whoever reads stage `to` must be done.
  FATHOM_DEVICE void ask(int to, int unit, int lane) const {
    if (lane != 0) return;
    device::arrive_and_expect(arrived + to, kStageBytes);
    device::copy_weight_box(base + to * kStageBytes, map, unit * kUnitColumns, row, 0, arrived + to);
  }
};

/// The codes of one half of a unit, 64 columns: of step s of 16 columns, row g and row g + 8.
FATHOM_DEVICE void read_codes(uint32_t (&codes)[4][2], const std::byte* stage, int half, int lane) {
  FATHOM_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t words[4];
    device::load_matrices(words, stage + device::box_place(lane % 16, half * 4 + pair * 2 + lane / 16));
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) codes[pair * 2 + i / 2][i % 2] = words[i];
  }
}

/// What a thread gives to the products of 16 columns.
template <Input kInput>
FATHOM_DEVICE void decode(const uint32_t (&codes)[2], uint32_t factor, uint32_t (&a)[4]) {
  FATHOM_UNROLL
  for (int i = 0; i < 2; ++i) {
    if constexpr (kInput == Input::e4m3) {
      a[i] = device::decode_codes<0>(codes[i]), a[i + 2] = device::decode_codes<1>(codes[i]);
    } else {
      a[i] = device::multiply_bf16x2(device::spread_even_codes(codes[i]), factor);
      a[i + 2] = device::multiply_bf16x2(device::spread_odd_codes(codes[i]), factor);
    }
  }
}

/// Scales of a slice's weights, 32 units at a time, a unit a lane.
struct WeightScales {
  const uint8_t* from;
  uint32_t held = 0;

  FATHOM_DEVICE uint32_t of(int unit, int count, int lane) {
    if (unit % 32 == 0 && unit + lane < count) held = from[unit + lane];
    return static_cast<uint32_t>(device::shuffle_from(static_cast<int>(held), unit % 32));
  }
};

/// total = the tile's sums of this slice: register 4 j + i of tile j as in mma_bf16.
template <Input kInput, int kTiles>
FATHOM_DEVICE void consume(const Params& p, const Place& at, const Slice& slice, const Staging<kInput, kTiles>& shared,
                           Ring ring, float (&total)[4 * kTiles]) {
  constexpr bool kScaled = kInput == Input::e4m3;
  constexpr bool kOverlap = kTiles < 8;  // registers for codes of both halves
  WeightScales weight_scales{at.weight_scale(p) + slice.begin};
  const int x_step = p.paired ? 2 : 1;
  int x_stage = p.paired ? at.warp / 4 : 0, x_round = 0;
  FATHOM_UNROLL_1
  for (int unit = 0; unit < slice.count; ++unit) {
    uint32_t factor = 0;
    if constexpr (!kScaled) {
      const uint32_t field = weight_scales.of(unit, slice.count, at.lane) + 120 - kHeadroom;
      factor = (field < 254 ? field : 254) * 0x00800080u;
    }
    const std::byte* weights = ring.base + ring.stage * kStageBytes;
    const std::byte* x = shared.x + x_stage * 2 * shared.kHalf;
    device::await(ring.arrived + ring.stage, ring.round);
    [[maybe_unused]] float sum[kScaled ? 4 * kTiles : 4];
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[4][2], a[4][4];
      read_codes(codes, weights, half, at.lane);
      FATHOM_UNROLL
      for (int s = 0; s < 4; ++s) decode<kInput>(codes[s], factor, a[s]);
      if (half == 0) {
        device::await(shared.full + x_stage, x_round);
      }
      device::multiply_begin();
      FATHOM_UNROLL
      for (int s = 0; s < 4; ++s) {
        const auto b = device::describe_matrix(x + half * shared.kHalf + 32 * s, 16, 1024);
        if constexpr (kScaled)
          device::multiply_rows_f16<kTiles>(sum, a[s], b, half + s > 0);
        else
          device::multiply_rows_bf16<kTiles>(total, a[s], b, true);
      }
      device::multiply_commit();
      if (half == 1) {
        device::sync_warp();  // the warp has read the stage
        if (unit + p.stages < slice.count) ring.ask(ring.stage, slice.begin + unit + p.stages, at.lane);
      }
      if (half == 1 || !kOverlap) device::multiply_wait<0>();
    }
    if constexpr (kScaled) {
      const bf16* scales = shared.scales + x_stage * shared.kTokens + at.lane % 4 * 2;
      FATHOM_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(scales + 8 * j);
        const float even = from_word(pair << 16), odd = from_word(pair & 0xFFFF0000u);
        total[4 * j] = fmaf(sum[4 * j], even, total[4 * j]);
        total[4 * j + 1] = fmaf(sum[4 * j + 1], odd, total[4 * j + 1]);
        total[4 * j + 2] = fmaf(sum[4 * j + 2], even, total[4 * j + 2]);
        total[4 * j + 3] = fmaf(sum[4 * j + 3], odd, total[4 * j + 3]);
      }
    }
    device::sync_warp();
    if (at.lane == 0) device::arrive(shared.empty + x_stage);
    if (++ring.stage == p.stages) ring.stage = 0, ++ring.round;
    x_stage += x_step;
    if (x_stage >= p.x_stages) x_stage -= p.x_stages, ++x_round;
  }
}

FATHOM_DEVICE uint64_t two_words(uint32_t low, uint32_t high) {
  return low | static_cast<uint64_t>(high) << 32;
}

/// 16 columns of a token as two pieces of its row of a half: even pairs of each word of codes, then odd ones.
FATHOM_DEVICE void store_codes(std::byte* row, int token, int piece, const Float4& v) {
  const uint32_t in[4] = {word(v.x), word(v.y), word(v.z), word(v.w)};
  Float4 first, second;
  first.x = from_word(device::decode_codes<0>(in[0])), second.x = from_word(device::decode_codes<1>(in[0]));
  first.y = from_word(device::decode_codes<0>(in[1])), second.y = from_word(device::decode_codes<1>(in[1]));
  first.z = from_word(device::decode_codes<0>(in[2])), second.z = from_word(device::decode_codes<1>(in[2]));
  first.w = from_word(device::decode_codes<0>(in[3])), second.w = from_word(device::decode_codes<1>(in[3]));
  *reinterpret_cast<Float4*>(row + (2 * piece ^ token % 8) * 16) = first;
  *reinterpret_cast<Float4*>(row + ((2 * piece + 1) ^ token % 8) * 16) = second;
}

/// 8 columns: those of even codes of a word go to the first 16 bytes of a step, those of odd codes to the second.
FATHOM_DEVICE void store_values(std::byte* row, int token, int piece, const Float4& v) {
  const uint32_t in[4] = {word(v.x), word(v.y), word(v.z), word(v.w)};
  std::byte* to = row + piece % 2 * 8;
  const int first = piece / 2 * 2;
  *reinterpret_cast<uint64_t*>(to + (first ^ token % 8) * 16) =
      two_words(device::byte_permute(in[0], in[1], 0x5410), device::byte_permute(in[2], in[3], 0x5410));
  *reinterpret_cast<uint64_t*>(to + ((first + 1) ^ token % 8) * 16) =
      two_words(device::byte_permute(in[0], in[1], 0x7632), device::byte_permute(in[2], in[3], 0x7632));
}

/// A producer's part of a unit of x, as it came, in the order and the format of the products. `to`: its first token.
template <Input kInput, int kTiles>
FATHOM_DEVICE void convert_unit(std::byte* to, const std::byte* from, int lane) {
  constexpr int kHalf = tokens_of(kTiles) * 128, kOctets = 2 * kTiles / producers(kTiles);
  const auto row = [&](const std::byte* boxes, int token, int piece) {
    return *reinterpret_cast<const Float4*>(boxes + token / 16 * (16 * 128) + device::box_place(token % 16, piece));
  };
  if constexpr (kInput == Input::e4m3) {
    // Tokens of 8 neighbouring lanes differ in bits 0 and 2, so that neither reads nor writes meet in a bank.
    const int piece = lane % 4, mine = lane / 8 ^ lane / 4 % 2 * 5;
    FATHOM_UNROLL_4
    for (int i = 0; i < 2 * kOctets; ++i) {
      const int half = i % 2, token = i / 2 * 8 + mine;
      store_codes(to + half * kHalf + token * 128, mine, piece, row(from, token, 4 * half + piece));
    }
  } else {
    const int piece = lane % 8;
    FATHOM_UNROLL_8
    for (int i = 0; i < 4 * kOctets; ++i) {
      const int half = i % 2, token = i / 2 * 4 + lane / 8;
      store_values(to + half * kHalf + token * 128, token, piece,
                   row(from + half * (input_bytes(kInput, kTiles) / 2), token, piece));
    }
  }
}

/// Scale of x times that of the weights for the token of a lane.
struct UnitScale {
  uint32_t x = 0, weight = 0;

  FATHOM_DEVICE void load(const Params& p, const Place& at, int unit, int token) {
    weight = at.weight_scale(p)[unit];
    if (token < at.tokens) x = p.x_scale[(at.first_token + token) * p.x_scale_stride + unit];
  }
  FATHOM_DEVICE void store(bf16* to, const Place& at, int token) const {
    const float scale = to_float(e8m0{static_cast<uint8_t>(x)}) * to_float(e8m0{static_cast<uint8_t>(weight)});
    if (token < at.tokens) to[token].bits = static_cast<uint16_t>(word(scale) >> 16);
  }
};

/// A producer warp brings every other unit of x, or those of a slice of a pair, from copies of its own.
template <Input kInput, int kTiles>
FATHOM_DEVICE void produce(const Params& p, const Maps& maps, const Place& at, const Staging<kInput, kTiles>& shared) {
  constexpr int kBytes = Staging<kInput, kTiles>::kInputBytes, kBoxes = kBytes / (16 * 128);
  const int warp = at.warp - kConsumers, mine = warp % 2, lane = at.lane, step = p.paired ? 1 : 2;
  const int first = warp / 2 * (2 * shared.kTokens / producers(kTiles));  // token
  const Slice slice(p, p.paired ? mine : 0);
  const int begin = slice.begin + (p.paired ? 0 : mine), count = (slice.begin + slice.count - begin + step - 1) / step;
  std::byte* inputs = shared.inputs + warp * kInputStages * kBytes;
  Phases* came = shared.came + warp * kInputStages;
  const auto ask = [&](int i) {
    const int unit = begin + i * step, stage = i % kInputStages;
    if (lane != 0 || i >= count) return;
    device::arrive_and_expect(came + stage, kBytes);
    FATHOM_UNROLL
    for (int box = 0; box < kBoxes; ++box) {
      std::byte* to = inputs + stage * kBytes + box * (16 * 128);
      if constexpr (kInput == Input::e4m3)
        device::copy_box(to, &maps.x, unit * kUnitColumns, at.first_token + first + 16 * box, 0, came + stage);
      else
        device::copy_box(to, &maps.x, unit % 4 * 256 + box / (kBoxes / 2) * 128,
                         at.first_token + first + box % (kBoxes / 2) * 16,
                         at.row / p.group_rows * p.group_heads + unit / 4, came + stage);
    }
  };
  for (int i = 0; i < kInputStages; ++i) ask(i);
  [[maybe_unused]] UnitScale scale;
  if constexpr (kInput == Input::e4m3)
    if (count > 0) scale.load(p, at, begin, first + lane);
  int stage = mine, round = 0;  // units of both kinds of producers take turns
  FATHOM_UNROLL_1
  for (int i = 0; i < count; ++i) {
    device::await(came + i % kInputStages, i / kInputStages);
    if (round > 0) device::await(shared.empty + stage, round - 1);
    convert_unit<kInput, kTiles>(shared.x + stage * 2 * shared.kHalf + first * 128, inputs + i % kInputStages * kBytes,
                                 lane);
    if constexpr (kInput == Input::e4m3) scale.store(shared.scales + stage * shared.kTokens, at, first + lane);
    device::publish_to_products();
    device::arrive(shared.full + stage);  // each lane for what it stored: checkers of races follow no other way
    device::sync_warp();                  // all have read what is asked for anew
    ask(i + kInputStages);
    if constexpr (kInput == Input::e4m3)  // not before: the fence waits for all loads
      if (i + 1 < count) scale.load(p, at, begin + (i + 1) * step, first + lane);
    stage += 2;
    if (stage >= p.x_stages) stage -= p.x_stages, ++round;
  }
}

/// Leaves a consumer warp's sums in shared memory: [token][row].
template <int kTiles>
FATHOM_DEVICE void put_sums(float* sums, const float (&total)[4 * kTiles], int warp, int lane) {
  // In a pair, the second slice follows the 64 rows of the first.
  float* mine = sums + warp * kWarpRows + lane / 4;
  FATHOM_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    float* to = mine + (8 * j + lane % 4 * 2) * kRowFloats;
    to[0] = total[4 * j], to[kRowFloats] = total[4 * j + 1];
    to[8] = total[4 * j + 2], to[kRowFloats + 8] = total[4 * j + 3];
  }
}

/// Sends the other blocks of the cluster their share of the tokens, and waits for those that they send:
/// [block][token][row], where this block's own place stays empty.
template <typename Shared>
FATHOM_DEVICE float* exchange_sums(const Place& at, const Shared& shared, int log2_cluster) {
  const int cluster = 1 << log2_cluster, rank = device::block_x(), thread = device::thread_index();
  constexpr int kRow = kRowFloats * sizeof(float);
  const auto first = [&](int block) { return at.tokens * block >> log2_cluster; };
  const int mine = first(rank + 1) - first(rank);
  float* received = shared.sums() + shared.kTokens * kRowFloats;
  device::await_cluster();  // nobody reads what the sums replace
  device::publish_to_products();
  device::sync_block();
  if (thread == 0 && mine > 0) device::arrive_and_expect(shared.received, (cluster - 1) * mine * kRow);
  if (thread < cluster && thread != rank) {
    const int count = first(thread + 1) - first(thread);
    if (count > 0)
      device::copy_to_cluster(received + rank * count * kRowFloats, thread, shared.sums() + first(thread) * kRowFloats,
                              count * kRow, shared.received);
  }
  if (mine > 0) device::await(shared.received, 0);
  return received;
}

/// Adds the slices in order and calls `store(token, row, sums)` for four rows of the tile a lane, warp by warp one
/// token. Each block of the cluster has its share of the tokens. All threads call; the first kWarps warps add.
template <int kWarps, typename Shared, typename Store>
FATHOM_DEVICE void add_slices(const Params& p, const Place& at, const Shared& shared, const Store& store) {
  const int log2_cluster = p.log2_slices - (p.paired ? 1 : 0), cluster = 1 << log2_cluster, rank = device::block_x();
  const float *own = shared.sums(), *others = own;
  if (cluster > 1)
    others = exchange_sums(at, shared, log2_cluster);
  else
    device::sync_block();
  const int first = at.tokens * rank >> log2_cluster, count = (at.tokens * (rank + 1) >> log2_cluster) - first;
  const int row = at.lane * 4;
  FATHOM_UNROLL_1
  for (int i = at.warp < kWarps ? at.warp : count; i < count; i += kWarps) {
    float sum[4] = {};
    FATHOM_UNROLL
    for (int s = 0; s < kMaxSlices; ++s) {
      if (s >= cluster || row >= at.tile_rows) continue;
      const float* from = (s == rank ? own + (first + i) * kRowFloats : others + (s * count + i) * kRowFloats) + row;
      const Float4 v = *reinterpret_cast<const Float4*>(from);
      sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
      if (!p.paired) continue;
      const Float4 u = *reinterpret_cast<const Float4*>(from + at.tile_rows);
      sum[0] += u.x, sum[1] += u.y, sum[2] += u.z, sum[3] += u.w;
    }
    if (row < at.tile_rows) store(at.first_token + first + i, row, sum);
  }
  if (cluster > 1) device::leave_cluster();
}

/// Grid: x = blocks of a cluster, y = tiles of tokens, z = tiles of rows.
template <Input kInput, int kTiles, typename Store>
FATHOM_DEVICE void multiply_tile(const Params& p, const Maps& maps, const Place& at, std::byte* memory,
                                 const Store& store) {
  const Staging<kInput, kTiles> shared(p, memory);
  const bool consumer = at.warp < kConsumers;
  const Slice slice(p, at.warp / 4);
  Ring ring;
  if (consumer) {
    ring.base = shared.rings + at.warp * p.stages * kStageBytes, ring.arrived = shared.arrived + at.warp * p.stages;
    ring.map = &maps.w[at.part];
    ring.row = at.row + (at.warp * kWarpRows & (at.tile_rows - 1));
    if (at.lane == 0) {
      for (int i = 0; i < p.stages; ++i) device::init_phases(ring.arrived + i, 1);
      device::publish_phases();
    }
    device::sync_warp();
    FATHOM_UNROLL_1
    for (int i = 0; i < p.stages && i < slice.count; ++i) ring.ask(i, slice.begin + i, at.lane);
  } else if (at.warp == kConsumers && at.lane == 0) {
    device::init_phases(shared.received, 1);
    for (int i = 0; i < p.x_stages; ++i)
      device::init_phases(shared.full + i, 32 * producers(kTiles) / 2),
          device::init_phases(shared.empty + i, p.paired ? kConsumers / 2 : kConsumers);
    for (int i = 0; i < producers(kTiles) * kInputStages; ++i) device::init_phases(shared.came + i, 1);
    device::publish_phases();
  }
  device::sync_block();
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // not earlier: whoever starts may rely on all that came before this kernel
  const bool alone = p.log2_slices == (p.paired ? 1 : 0);
  constexpr bool kShift = kInput == Input::e4m3 && kTiles == 8;  // registers from producers to consumers
  if (consumer) {
    if constexpr (kShift) device::take_registers<96>();
    float total[4 * kTiles] = {};
    consume<kInput, kTiles>(p, at, slice, shared, ring, total);
    device::sync_block();  // rings and x have been read
    if (!alone) device::arrive_cluster_relaxed();
    put_sums<kTiles>(shared.sums(), total, at.warp, at.lane);
  } else {
    if constexpr (kShift) device::give_registers<48>();
    produce<kInput, kTiles>(p, maps, at, shared);
    device::sync_block();
    if (!alone) device::arrive_cluster_relaxed();
  }
  add_slices<threads(kTiles) / 32>(p, at, shared, store);
}

/// y as bf16.
FATHOM_DEVICE void store_row_quad(const Part& part, int n, int64_t token, const float (&v)[4]) {
  bf16* y = part.y + token * part.y_stride + n;
  const uint32_t pair[2] = {device::pack_bf16x2(v[0], v[1]), device::pack_bf16x2(v[2], v[3])};
  if (part.aligned && n + 3 < part.rows) {
    *reinterpret_cast<uint64_t*>(y) = two_words(pair[0], pair[1]);
    return;
  }
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i)
    if (n + i < part.rows) y[i] = bf16{static_cast<uint16_t>(pair[i / 2] >> 16 * (i & 1))};
}

template <int kTiles>
FATHOM_DEVICE void linear_block(const Params& p, const Maps& maps, std::byte* memory) {
  const Place at(p, tokens_of(kTiles));
  multiply_tile<Input::e4m3, kTiles>(p, maps, at, memory, [&](int token, int row, const float(&sum)[4]) {
    store_row_quad(p.part[at.part], at.row + row, token, sum);
  });
}

}  // namespace fathom::ops::stream
