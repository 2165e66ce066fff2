// Products of codes as they are for 33 to 64 tokens and weights with few rows (sm_90a): codes_kernel.cuh for one block
// on a multiprocessor, where no cluster has to find a place.
//
// A warpgroup has a strip of 64 rows and all tokens, sums of 32 columns as there; the two teams of warpgroups take
// units of columns in turn. One more warp asks for boxes. Slices of K meet in memory: a block has some of the tokens to
// add, and gets the sums of the other slices in words that are their own signal.
#pragma once

#include "ops/linear/stream_kernel.cuh"
#include "ops/linear/strips_params.h"

namespace fathom::ops::strips {

using device::Float4;
using device::Phases;

/// A strip: its rows from `row` on of a part; past the last one there are none.
struct Strip {
  int part = 0, row = 0;
  bool present;

  FATHOM_DEVICE Strip(const Params& p, int number) : present(number < p.strips) {
    while (part + 1 < p.all.parts && number >= p.all.part[part + 1].first_tile) ++part;
    row = (number - p.all.part[part].first_tile) * kStripRows;
  }
};

/// The units of a block's slice, and where it stands.
struct Place {
  int warp, lane, group;  // of the warpgroup
  int begin, count;       // units
  int first_strip;

  explicit FATHOM_DEVICE Place(const Params& p) {
    warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32, group = warp / 4;
    begin = first_unit(p.all.units, p.all.log2_slices, device::block_x());
    count = first_unit(p.all.units, p.all.log2_slices, device::block_x() + 1) - begin;
    first_strip = device::block_z() * kStrips;
  }
};

/// Shared memory: barriers; scales; then stages [team][stage], strips of weights and x, boxes in 128-byte swizzle.
/// Sums take the place of the stages.
struct Shared {
  Phases *full, *empty;  // [team][stage]
  float *x_scale, *weight_scale;
  std::byte* stages;

  FATHOM_DEVICE Shared(const Params& p, const Place& at, std::byte* shared) {
    full = reinterpret_cast<Phases*>(shared), empty = full + kTeams * p.all.stages;
    x_scale = reinterpret_cast<float*>(shared + kBarriers), weight_scale = x_scale + at.count * kTokens;
    stages = shared + header_bytes(longest_slice(p.all.units, p.all.log2_slices));
  }
};

/// Asks for all units of the slice; for x from the moment on when the previous kernel has ended. One thread.
FATHOM_DEVICE void bring_strips(const Params& p, const Maps& maps, const Place& at, const Shared& shared) {
  const int left = p.strips - at.first_strip, strips = left < kStrips ? left : kStrips;
  const auto weights = [&](int i, int stage) {
    std::byte* to = shared.stages + stage * kStageBytes;
    device::arrive_and_expect(shared.full + stage, (strips + 1) * kBoxBytes);
    FATHOM_UNROLL_1
    for (int s = 0; s < strips; ++s) {
      const Strip strip(p, at.first_strip + s);
      device::copy_weight_box(to + s * kBoxBytes, &maps.w[strip.part], (at.begin + i) * kUnitColumns, strip.row, 0,
                              shared.full + stage);
    }
  };
  const auto x = [&](int i, int stage) {
    device::copy_box(shared.stages + stage * kStageBytes + kStrips * kBoxBytes, &maps.x, (at.begin + i) * kUnitColumns,
                     0, 0, shared.full + stage);
  };
  // Stage s of team t is number t stages + s; units go to the teams in turn.
  const auto stage_of = [&](int i) { return i % kTeams * p.all.stages + i / kTeams; };
  const int room = kTeams * p.all.stages, first = room < at.count ? room : at.count;
  for (int i = 0; i < first; ++i) weights(i, stage_of(i));
  device::wait_for_previous_kernel();
  for (int i = 0; i < first; ++i) x(i, stage_of(i));
  int stage = 0, round = 0;
  FATHOM_UNROLL_1
  for (int i = first; i < at.count; ++i) {
    const int to = i % kTeams * p.all.stages + stage;
    device::await(shared.empty + to, round);
    weights(i, to), x(i, to);
    if (i % kTeams == kTeams - 1 && ++stage == p.all.stages) stage = 0, ++round;
  }
}

/// Scales of the slice, by the consumers. Those of weights before the previous kernel has ended.
FATHOM_DEVICE void load_scales(const Params& p, const Place& at, const Shared& shared) {
  const int thread = device::thread_index();
  FATHOM_UNROLL_1
  for (int s = 0; s < kStrips; ++s) {
    const Strip strip(p, at.first_strip + s);
    const stream::Part& part = p.all.part[strip.part];
    if (strip.present && thread < at.count)
      shared.weight_scale[s * at.count + thread] =
          to_float(e8m0{part.scale[strip.row / stream::kTileRows * part.scale_stride + at.begin + thread]});
  }
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // not earlier: whoever starts may rely on all that came before this kernel
  FATHOM_UNROLL_4
  for (int i = thread; i < at.count * kTokens; i += kConsumers) {
    const int unit = i / kTokens, token = i % kTokens;
    float scale = 0;
    if (token < p.all.tokens) scale = to_float(e8m0{p.all.x_scale[token * p.all.x_scale_stride + at.begin + unit]});
    shared.x_scale[i] = scale;
  }
  device::sync_first<kConsumers>();
}

/// total = sums of this warpgroup's units: register 4 j + i of column tile j as in mma_bf16. Products of 32 columns and
/// half of the tokens; the next one is under way while one is scaled and added.
FATHOM_DEVICE void multiply_strip(const Params& p, const Place& at, const Shared& shared, float (&total)[4 * kTiles]) {
  constexpr int kHalf = kTiles / 2, kSteps = 2 * kUnitColumns / 32;
  const int team = at.group / kStrips, strip = at.group % kStrips;
  const std::byte* ring = shared.stages + team * p.all.stages * kStageBytes;
  const auto weights = device::describe_matrix(ring + strip * kBoxBytes, 16, 1024);
  const auto x = device::describe_matrix(ring + kStrips * kBoxBytes, 16, 1024);
  Phases *full = shared.full + team * p.all.stages, *empty = shared.empty + team * p.all.stages;
  const float* x_scale = shared.x_scale + at.lane % 4 * 2;
  const float* weight_scale = shared.weight_scale + strip * at.count;
  int stage = 0, round = 0;
  FATHOM_UNROLL_1
  for (int unit = team; unit < at.count; unit += kTeams) {
    float sum[2][4 * kHalf], factor[2 * kTiles];
    const auto multiply = [&](int step) {
      const int columns = stage * kStageBytes + step / 2 * 32;
      device::multiply_begin();
      device::multiply_64_rows_e4m3<kHalf>(sum[step % 2], device::behind(weights, columns),
                                           device::behind(x, columns + step % 2 * (kBoxBytes / 2)), false);
      device::multiply_commit();
    };
    const float scale = weight_scale[unit];
    FATHOM_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      factor[2 * j] = x_scale[unit * kTokens + 8 * j] * scale;
      factor[2 * j + 1] = x_scale[unit * kTokens + 8 * j + 1] * scale;
    }
    device::await(full + stage, round);
    multiply(0);
    FATHOM_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) {
        multiply(step + 1);
        device::multiply_wait<1>();
      } else {
        device::multiply_wait<0>();
        device::sync_warp();
        if (at.lane == 0) device::arrive(empty + stage);
      }
      const int half = step % 2, first = half * 4 * kHalf;
      FATHOM_UNROLL
      for (int i = 0; i < 4 * kHalf; ++i)
        total[first + i] = fmaf(sum[half][i], factor[half * kTiles + i / 4 * 2 + i % 2], total[first + i]);
    }
    if (++stage == p.all.stages) stage = 0, ++round;
  }
}

/// Adds the sums of both teams: the first one has the first half of the tokens, the second one the second half.
FATHOM_DEVICE void meet_teams(const Shared& shared, const float (&total)[4 * kTiles], float (&mine)[4 * kMine]) {
  constexpr int kEach = 128 * kStrips;
  const int thread = device::thread_index() % kEach;
  const bool second = device::thread_index() / kEach == 1;
  auto* area = reinterpret_cast<Float4*>(shared.stages);  // [team][tile][thread]
  FATHOM_UNROLL
  for (int j = 0; j < kMine; ++j) {
    float other[4];
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = total[4 * j + i], high = total[4 * (j + kMine) + i];
      mine[4 * j + i] = second ? high : low, other[i] = second ? low : high;
    }
    area[((second ? kMine : 0) + j) * kEach + thread] = {other[0], other[1], other[2], other[3]};
  }
  device::sync_first<kConsumers>();
  FATHOM_UNROLL
  for (int j = 0; j < kMine; ++j) {
    const Float4 v = area[((second ? 0 : kMine) + j) * kEach + thread];
    mine[4 * j] += v.x, mine[4 * j + 1] += v.y, mine[4 * j + 2] += v.z, mine[4 * j + 3] += v.w;
  }
}

/// Sums are their own signal: a word of 0 has not come yet, so a sum of 0 is sent as -0.
FATHOM_DEVICE float as_signal(float v) {
  return v == 0 ? -0.0f : v;
}
/// Four sums that another block sends.
struct Sent {
  uint64_t pair[2];

  FATHOM_DEVICE void look(const Float4* from) {
    FATHOM_UNROLL
    for (int i = 0; i < 2; ++i) pair[i] = device::load_relaxed(reinterpret_cast<const uint64_t*>(from) + i);
  }
  FATHOM_DEVICE uint32_t word(int i) const { return static_cast<uint32_t>(pair[i / 2] >> 32 * (i % 2)); }
  FATHOM_DEVICE bool has_come() const { return word(0) != 0 && word(1) != 0 && word(2) != 0 && word(3) != 0; }
};

/// Sends the sums of tokens that other slices' blocks add, waits for theirs, and adds in the order of slices. Of the
/// kMine tiles of a warpgroup, a slice's block has kMine / slices. All blocks are there at once (make_plan).
FATHOM_DEVICE void meet_slices(const Params& p, float (&mine)[4 * kMine]) {
  constexpr uint32_t kHopeless = 1u << 24;  // looks, of 0.6 us and more
  const int log2 = p.all.log2_slices, slices = 1 << log2, rank = device::block_x(), shift = kMostLog2Slices - log2;
  auto* const sums = reinterpret_cast<Float4*>(p.sums) + device::block_z() * (kMine * slices) * kConsumers +
                     device::thread_index();  // [tile][slice][thread]
  FATHOM_UNROLL
  for (int j = 0; j < kMine; ++j)
    if (j >> shift != rank)
      sums[(j * slices + rank) * kConsumers] = {as_signal(mine[4 * j]), as_signal(mine[4 * j + 1]),
                                                as_signal(mine[4 * j + 2]), as_signal(mine[4 * j + 3])};
  FATHOM_UNROLL
  for (int j = 0; j < kMine; ++j) {
    if (j >> shift != rank) continue;
    Float4* from = sums + j * slices * kConsumers;
    Sent sent[kMostSlices];
    FATHOM_UNROLL
    for (int s = 0; s < kMostSlices; ++s)
      if (s < slices && s != rank) sent[s].look(from + s * kConsumers);
    float sum[4] = {};
    FATHOM_UNROLL
    for (int s = 0; s < kMostSlices; ++s) {
      if (s >= slices) continue;
      if (s == rank) {
        FATHOM_UNROLL
        for (int i = 0; i < 4; ++i) sum[i] += mine[4 * j + i];
        continue;
      }
      FATHOM_UNROLL_1
      for (uint32_t looks = 0; !sent[s].has_come(); ++looks) {
        if (looks == kHopeless) device::trap();
        device::rest();
        sent[s].look(from + s * kConsumers);
      }
      from[s * kConsumers] = {};  // for the next launch
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) sum[i] += stream::from_word(sent[s].word(i));
    }
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) mine[4 * j + i] = sum[i];
  }
}

/// Stores tile `tile` of 8 tokens of a warpgroup's strip, from `area` in shared memory in passing.
struct Leaving {
  uint32_t* area;  // [tile][token][kOutWords]
  int lane, warp;  // of the warpgroup

  FATHOM_DEVICE void put(int slot, const float* v) const {
    // Two neighbouring lanes have two rows of two tokens: each gets both rows of one.
    const bool odd = lane / 4 % 2 != 0;
    uint32_t* to = area + (8 * slot + lane % 4 * 2 + (odd ? 1 : 0)) * kOutWords + warp * 8 + lane / 8;
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = device::pack_bf16x2(v[2 * half], v[2 * half + 1]);
      const auto other = static_cast<uint32_t>(device::shuffle_xor(static_cast<int>(pair), 4));
      to[4 * half] = odd ? device::byte_permute(other, pair, 0x7632) : device::byte_permute(pair, other, 0x5410);
    }
  }
  FATHOM_DEVICE void store(int slot, const stream::Part& part, int row, int first_token, int tokens) const {
    const int thread = 32 * warp + lane, token = first_token + thread / 16, quad = thread % 16;
    const int n = row + 4 * quad;
    const uint64_t words = *reinterpret_cast<const uint64_t*>(area + (8 * slot + thread / 16) * kOutWords + 2 * quad);
    if (token >= tokens) return;
    bf16* y = part.y + token * part.y_stride + n;
    if (part.aligned && n + 3 < part.rows) {
      *reinterpret_cast<uint64_t*>(y) = words;
      return;
    }
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i)
      if (n + i < part.rows) y[i] = bf16{static_cast<uint16_t>(words >> 16 * i)};
  }
};

/// Grid: x = slices, z = blocks along the rows.
FATHOM_DEVICE void strips_block(const Params& p, const Maps& maps, std::byte* memory) {
  constexpr int kWarps = kConsumers / 32;
  const Place at(p);
  const Shared shared(p, at, memory);
  const bool consumer = at.warp < kWarps;
  if (at.warp == kWarps && at.lane == 0) {
    const int left = p.strips - at.first_strip, strips = left < kStrips ? left : kStrips;
    for (int i = 0; i < kTeams * p.all.stages; ++i)
      device::init_phases(shared.full + i, 1), device::init_phases(shared.empty + i, 4 * strips);
    device::publish_phases();
  }
  device::sync_block();
  const Strip strip(p, at.first_strip + at.group % kStrips);
  float total[4 * kTiles] = {};
  if (consumer) {
    load_scales(p, at, shared);
    if (strip.present) multiply_strip(p, at, shared, total);
  } else if (at.lane == 0) {
    bring_strips(p, maps, at, shared);
  }
  device::sync_warp();
  device::sync_block();  // stages have been read
  if (!consumer) return;
  float mine[4 * kMine];
  meet_teams(shared, total, mine);
  if (p.all.log2_slices > 0) meet_slices(p, mine);
  const int shift = kMostLog2Slices - p.all.log2_slices, rank = device::block_x();
  const Leaving leaving{reinterpret_cast<uint32_t*>(shared.stages + kMeetBytes) + at.group * (8 * kMine * kOutWords),
                        at.lane, at.warp % 4};
  FATHOM_UNROLL
  for (int j = 0; j < kMine; ++j)
    if (j >> shift == rank) leaving.put(j, mine + 4 * j);
  device::sync_first<kConsumers>();
  if (!strip.present) return;
  FATHOM_UNROLL
  for (int j = 0; j < kMine; ++j)
    if (j >> shift == rank)
      leaving.store(j, p.all.part[strip.part], strip.row, 8 * (at.group / kStrips * kMine + j), p.all.tokens);
}

}  // namespace fathom::ops::strips
