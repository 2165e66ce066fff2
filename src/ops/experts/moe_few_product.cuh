// What a warp of the expert kernels for few tokens does: the tiles, its tasks, the ring that brings their weights, and
// the product. The kernels are in moe_few.cuh.
#pragma once

#include "ops/experts/moe_stream.cuh"

namespace fathom::ops::moe {

/// Tiles of routed experts, ascending: lane n holds tile n.
struct FewTiles {
  int expert = -1;
  uint32_t slots = 0;  // bit i: slot i belongs to it
  int count = 0;       // of tiles, in all lanes
  uint32_t live = 0;   // slots whose expert is here, in all lanes
};

FATHOM_DEVICE FewTiles find_tiles(const Params& p) {
  const int lane = device::lane_index(), slots = p.tokens * p.choices;
  const int mine = lane < slots ? expert_of(p, lane) : -1;
  FewTiles tiles;
  tiles.live = device::ballot(mine >= 0);
  if (p.tokens == 1 && (tiles.live & (tiles.live + 1)) == 0) {  // ascending and all here
    tiles.expert = mine, tiles.slots = mine < 0 ? 0 : 1u << lane, tiles.count = device::count_bits(tiles.live);
    return tiles;
  }
  int before = 0;  // experts below mine
  FATHOM_UNROLL_1
  for (int i = 0; i < slots; ++i) {
    const int other = device::shuffle_int(mine, i);
    if (other < 0) continue;
    if (device::lowest_bit(device::ballot(mine == other)) != i) continue;
    ++tiles.count;
    if (other < mine) ++before;
  }
  FATHOM_UNROLL_1
  for (int i = 0; i < slots; ++i) {
    const int other = device::shuffle_int(mine, i), place = device::shuffle_int(before, i);
    const uint32_t same = device::ballot(mine == other);
    if (other >= 0 && lane == place) tiles.expert = other, tiles.slots = same;
  }
  return tiles;
}

/// 2 x 16 rows times one slice of the columns: of w1 and w3 from `row` on, or 32 rows of w2.
struct FewTask {
  int expert;      // -1: the shared one
  uint32_t slots;  // of a routed expert
  int slice;
};

/// Column i of the tensor core tile, as a slot.
FATHOM_DEVICE int few_slot(const Params& p, const FewTask& task, int i) {
  if (task.expert < 0) return p.tokens * p.choices + i;
  uint32_t left = task.slots;
  FATHOM_UNROLL_1
  for (int k = 0; k < i; ++k) left &= left - 1;
  return device::lowest_bit(left);
}
FATHOM_DEVICE int few_tokens(const Params& p, const FewTask& task) {
  return task.expert < 0 ? p.tokens : device::count_bits(task.slots);
}

/// The tasks of a warp of up. Four warps, a group, share a tile.
struct UpTasks {
  const Params& p;
  const Maps& maps;
  int group, groups, slice, row;
  bool active, shared;  // has a slice; begins with the shared expert
  int count;            // as far as known
  FewTiles tiles;

  FATHOM_DEVICE UpTasks(const Params& params, const Maps& m) : p(params), maps(m) {
    const int warp = device::uniform(device::warp_index());
    group = warp / kMaxSlices, groups = p.few_up.warps / kMaxSlices, slice = warp % kMaxSlices;
    row = device::block_x() * kGroupRows;
    active = slice < 1 << p.log2_up_slices;
    shared = group == 0 && p.shared_tiles > 0 && row < p.s1.rows;
    count = active && shared ? 1 : 0;
  }
  FATHOM_DEVICE void set_tiles() {
    tiles = find_tiles(p);
    if (active && row < p.w1.rows) count += (tiles.count + group) / groups;
  }
  FATHOM_DEVICE FewTask get(int n) const {
    if (shared && n == 0) return {-1, 0, slice};
    const int tile = groups * (shared ? n - 1 : n) + groups - 1 - group;
    const auto slots = shuffle_word(tiles.slots, tile);
    return {device::shuffle_int(tiles.expert, tile), slots, slice};
  }
  FATHOM_DEVICE const Weight& weight(const FewTask& t, int m) const {
    return t.expert < 0 ? m ? p.s3 : p.s1 : m ? p.w3 : p.w1;
  }
  FATHOM_DEVICE const TensorMap* map(const FewTask& t, int m) const {
    return t.expert < 0 ? m ? &maps.s3 : &maps.s1 : m ? &maps.w3 : &maps.w1;
  }
  FATHOM_DEVICE int row_of(int) const { return row; }
  FATHOM_DEVICE int log2_slices() const { return p.log2_up_slices; }
};

/// The tasks of a warp of down. One of the shared expert takes as long as two: its warps have none in the second round,
/// and the first tasks of others go to warps of other schedulers.
struct DownTasks {
  const Params& p;
  const Maps& maps;
  int warp, warps, row, of_shared;  // tasks of the shared expert
  int count;
  FewTiles tiles;

  FATHOM_DEVICE DownTasks(const Params& params, const Maps& m) : p(params), maps(m) {
    warps = p.few_down.warps, row = device::block_x() * (2 * kGroupRows);
    of_shared = p.shared_tiles > 0 ? 1 << p.log2_down_slices : 0;
    // Number in the order of tasks. Warps n, n + 4 ... have a scheduler.
    const int at = device::uniform(device::warp_index()), four = at / 4, first = at % 4, others = 4 - of_shared;
    warp = first >= of_shared ? of_shared + four * others + first - of_shared
           : four == 0        ? first
                              : of_shared + warps / 4 * others + (four - 1) * of_shared + first;
    tiles = find_tiles(p);
    const int routed = tiles.count << p.log2_down_slices, rest = warps - of_shared, later = routed - 2 * rest - warp;
    count = later > 0 ? (later + warps - 1) / warps : 0;
    if (warp < of_shared)
      ++count;
    else
      count += (warp - of_shared < routed) + (warp - of_shared + rest < routed);
  }
  FATHOM_DEVICE FewTask get(int n) const {
    if (warp < of_shared && n == 0) return {-1, 0, warp};
    const int rest = warps - of_shared, first = warp < of_shared ? 1 : 2;  // of the rounds with all warps
    const int i = n >= first ? 2 * rest + warp + (n - first) * warps : warp - of_shared + n * rest;
    const int tile = i >> p.log2_down_slices;
    const auto slots = shuffle_word(tiles.slots, tile);
    return {device::shuffle_int(tiles.expert, tile), slots, i & ((1 << p.log2_down_slices) - 1)};
  }
  FATHOM_DEVICE const Weight& weight(const FewTask& t, int) const { return t.expert < 0 ? p.s2 : p.w2; }
  FATHOM_DEVICE const TensorMap* map(const FewTask& t, int) const { return t.expert < 0 ? &maps.s2 : &maps.w2; }
  FATHOM_DEVICE int row_of(int m) const { return row + m * kGroupRows; }
  FATHOM_DEVICE int log2_slices() const { return p.log2_down_slices; }
};

/// Where a task's columns begin, in blocks of 128, and how many units it has.
struct FewSlice {
  int first, units;
};
FATHOM_DEVICE FewSlice slice_of(const Weight& w, const FewTask& t, int log2_slices) {
  const int first = first_block(w.blocks, log2_slices, t.slice), end = first_block(w.blocks, log2_slices, t.slice + 1);
  return {first, (end - first) * block_units(t.expert < 0 ? ExpertFormat::fp8 : ExpertFormat::mxfp4)};
}

/// The ring of a warp: lines of its tasks, one after the other. A line is 128 bytes of 2 x 16 rows, two boxes, with the
/// scales of routed experts.
struct FewRing {
  std::byte *ring, *scales;  // of the warp
  Phases* arrived;
  int stages, lane;
  int task = 0, at = 0, units = 0;  // what is asked for next: task - 1, from unit `at` on
  const TensorMap* map[2] = {};
  const uint8_t* scale[2] = {};  // of row lane / 2, the first unit of the task
  int column = 0, plane = 0;
  int free;  // stages
  int to = 0, stage = 0, round = 0;

  FATHOM_DEVICE FewRing(const FewLayout& l, std::byte* shared, int lane_index) : stages(l.stages), lane(lane_index) {
    const int warp = device::uniform(device::warp_index());
    ring = shared + warp * stages * kFewStage;
    scales = shared + l.scales + warp * stages * kFewScaleBytes;
    arrived = reinterpret_cast<Phases*>(shared + l.barriers) + warp * stages;
    free = stages;
    if (lane == 0) {
      FATHOM_UNROLL_1
      for (int i = 0; i < stages; ++i) device::init_phases(arrived + i, 1);
      device::publish_phases();
    }
    device::sync_warp();
  }
  template <typename Tasks>
  FATHOM_DEVICE void enter(const Tasks& tasks) {
    const FewTask t = tasks.get(task++);
    const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices());
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      const Weight& w = tasks.weight(t, m);
      map[m] = tasks.map(t, m), scale[m] = nullptr;
      if (t.expert >= 0)
        scale[m] =
            w.scale + t.expert * w.expert_scale + int64_t{tasks.row_of(m) + lane / 2} * w.scale_row + s.first * 4;
    }
    plane = t.expert < 0 ? 0 : t.expert, column = s.first * (t.expert < 0 ? kBlock : kUnitBytes);
    at = 0, units = s.units;
  }
  /// Asks for as much as there is place for. Whoever read stages that are free must be done.
  template <typename Tasks>
  FATHOM_DEVICE void fill(const Tasks& tasks) {
    while (free > 0) {
      if (at >= units) {
        if (task >= tasks.count) return;
        enter(tasks);
      }
      if (lane == 0) {
        device::arrive_and_expect(arrived + to, kFewStage);
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m)
          device::copy_box(ring + to * kFewStage + m * kMatrixBytes, map[m], column + at * kUnitBytes, tasks.row_of(m),
                           plane, arrived + to);
      }
      if (scale[0]) {
        const int unit = at + lane % 2;
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m)
          device::copy_async_4(scales + to * kFewScaleBytes + m * (kFewScaleBytes / 2) + lane * 4,
                               scale[m] + (unit < units ? unit : at) * 4, unit < units);
      }
      device::copy_async_commit();
      at += 2, --free, to = to + 1 == stages ? 0 : to + 1;
    }
  }
  /// Waits for the next line; everybody has done with the one before.
  FATHOM_DEVICE void wait() {
    device::await(arrived + stage, round);
    switch (stages - free) {  // lines that were asked for and not used: scales of those behind this one may be missing
      case 1:
        device::copy_async_wait<0>();
        break;
      case 2:
        device::copy_async_wait<1>();
        break;
      case 3:
        device::copy_async_wait<2>();
        break;
      default:
        device::copy_async_wait<3>();
    }
    device::sync_warp();
  }
  FATHOM_DEVICE void read(Unit& u, int m, int half) const {
    const std::byte* from =
        ring + stage * kFewStage + m * kMatrixBytes + device::box_place(lane / 4, half * 4 + lane % 4);
    u.low = *reinterpret_cast<const Float4*>(from);
    u.high = *reinterpret_cast<const Float4*>(from + 8 * kLineBytes);
  }
  /// Factors of this lane's codes of rows g and g + 8, MXFP4.
  FATHOM_DEVICE void read_factors(uint32_t (&low)[2], uint32_t (&high)[2], int m, int half) const {
    const auto* from = reinterpret_cast<const uint8_t*>(scales + stage * kFewScaleBytes + m * (kFewScaleBytes / 2)) +
                       lane / 4 * 8 + half * 4 + lane % 4;
    low[0] = low[1] = power_pair(from[0], 126 - kHeadroom);
    high[0] = high[1] = power_pair(from[64], 126 - kHeadroom);
  }
  FATHOM_DEVICE void advance() {
    ++free;
    if (++stage == stages) stage = 0, ++round;
  }
};

/// Scales of the first task where it is one of the shared expert: lane n holds those of block n.
struct SharedScales {
  uint32_t of[2] = {};
};
template <typename Tasks>
FATHOM_DEVICE SharedScales shared_scales(const Tasks& tasks, int lane) {
  SharedScales scales;
  if (tasks.count == 0) return scales;
  const FewTask t = tasks.get(0);
  if (t.expert >= 0) return scales;
  FATHOM_UNROLL
  for (int m = 0; m < 2; ++m) {
    const Weight& w = tasks.weight(t, m);
    const FewSlice s = slice_of(w, t, tasks.log2_slices());
    if (lane < s.units / 2) scales.of[m] = w.scale[tasks.row_of(m) / kBlock * w.scale_row + s.first + lane];
  }
  return scales;
}

/// A whole task. `x`: the row of this lane's token.
template <ExpertFormat kFormat, typename Tasks>
FATHOM_DEVICE void few_product(float (&sum)[2][4], FewRing& ring, const Tasks& tasks, const FewTask& t,
                               const SharedScales& shared, const std::byte* x, int lane) {
  constexpr int kUnits = block_units(kFormat);
  const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices());
  x += s.first * kBlockBytes;
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0;
  FATHOM_UNROLL_1
  for (int line = 0; 2 * line < s.units; ++line, x += 2 / kUnits * kBlockBytes) {
    ring.wait(), ring.fill(tasks);
    uint32_t low[2][2], high[2][2];
    if constexpr (!is_fp4(kFormat)) {
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m)
        low[m][0] = low[m][1] = high[m][0] = high[m][1] = power_pair(shuffle_word(shared.of[m], line), 120 - kHeadroom);
    }
    FATHOM_UNROLL_1  // little code: it comes from memory in each launch anew
        for (int half = 0; half < 2 && 2 * line + half < s.units; ++half) {
      Unit unit[2];
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) {
        ring.read(unit[m], m, half);
        if constexpr (is_fp4(kFormat)) ring.read_factors(low[m], high[m], m, half);
      }
      FATHOM_UNROLL
      for (int step = 0; step < unit_steps(kFormat); ++step) {
        const Float4 b = *reinterpret_cast<const Float4*>(x + (half / kUnits) * kBlockBytes +
                                                          piece_of<kFormat, false>(half % kUnits, step, lane) * 16);
        uint32_t a[2][2][4];
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m) {
          decode_step<kFormat, false>(unit[m].low, low[m], step, a[m][0]);
          decode_step<kFormat, false>(unit[m].high, high[m], step, a[m][1]);
        }
        stream_half<0>(sum[0], a[0], b), stream_half<0>(sum[1], a[1], b);
        stream_half<1>(sum[0], a[0], b), stream_half<1>(sum[1], a[1], b);
      }
    }
    ring.advance();
  }
}

/// Calls `put(token column, matrix or half, row of 16, sum)` for what this lane holds of real tokens.
template <typename Put>
FATHOM_DEVICE void for_few_sums(const float (&sum)[2][4], int tokens, int lane, const Put& put) {
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int column = lane % 4 * 2 + i % 2;
    if (column >= tokens) continue;
    put(column, 0, lane / 4 + i / 2 * 8, sum[0][i]), put(column, 1, lane / 4 + i / 2 * 8, sum[1][i]);
  }
}

}  // namespace fathom::ops::moe
