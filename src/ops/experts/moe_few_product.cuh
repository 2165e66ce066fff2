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

/// One slice of the columns times rows of a routed expert, 16 of w1 and 16 of w3 or 32 of w2, or times those of one
/// half, `part`, of the shared expert, whose codes are twice as long.
struct FewTask {
  int expert;      // -1: the shared one
  uint32_t slots;  // of a routed expert
  int slice, part;
  bool down = false;
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

/// The tasks of a warp of up. Four warps, a group, share a tile. Where rows are few, several blocks have the same rows
/// and divide the tiles; the first two groups of the first of them begin with the shared expert.
struct UpTasks {
  const Params& p;
  const Maps& maps;
  int group, groups, slice, row;
  int order, all_groups;  // of this group among those of all blocks that have these rows
  bool active;            // has a slice
  int count, of_shared;   // as far as known; 1 where the first is one of the shared expert
  FewTiles tiles;

  FATHOM_DEVICE UpTasks(const Params& params, const Maps& m) : p(params), maps(m) {
    const int warp = device::uniform(device::warp_index());
    group = warp / kMaxSlices, groups = p.few_up.warps / kMaxSlices, slice = warp % kMaxSlices;
    const int share = device::block_x() % p.few_shares;
    row = device::block_x() / p.few_shares * kGroupRows;
    order = share * groups + group, all_groups = p.few_shares * groups;
    active = slice < 1 << p.log2_up_slices;
    of_shared = active && order < 2 && p.shared_tiles > 0 && row < p.s1.rows ? 1 : 0;
    count = of_shared;
  }
  FATHOM_DEVICE void set_tiles() {
    tiles = find_tiles(p);
    if (active && row < p.w1.rows) count += (tiles.count + order) / all_groups;
  }
  FATHOM_DEVICE FewTask get(int n) const {
    if (n < of_shared) return {-1, 0, slice, group};
    const int tile = all_groups * (n - of_shared) + all_groups - 1 - order;
    const auto slots = shuffle_word(tiles.slots, tile);
    return {device::shuffle_int(tiles.expert, tile), slots, slice, 0};
  }
  FATHOM_DEVICE const Weight& weight(const FewTask& t, int m) const {
    return t.expert < 0 ? t.part ? p.s3 : p.s1 : m ? p.w3 : p.w1;
  }
  FATHOM_DEVICE const TensorMap* map(const FewTask& t, int m) const {
    return t.expert < 0 ? t.part ? &maps.s3 : &maps.s1 : m ? &maps.w3 : &maps.w1;
  }
  FATHOM_DEVICE int row_of(const FewTask&, int) const { return row; }
  FATHOM_DEVICE int log2_slices(const FewTask&) const { return p.log2_up_slices; }
};

/// The tasks of a warp of down: those of the shared expert first.
struct DownTasks {
  const Params& p;
  const Maps& maps;
  int warp, row, of_shared, count = 0;
  FewTiles tiles;

  FATHOM_DEVICE DownTasks(const Params& params, const Maps& m) : p(params), maps(m) {
    warp = device::uniform(device::warp_index()), row = device::block_x() * (2 * kGroupRows);
    of_shared = p.shared_tiles > 0 ? 2 << p.log2_down_slices : 0;
  }
  FATHOM_DEVICE void set_tiles(const FewTiles& found) {
    tiles = found;
    if (row >= p.d) return;
    const int rest = of_shared + (tiles.count << p.log2_down_slices) - warp;
    count = rest > 0 ? (rest + p.few_down.warps - 1) / p.few_down.warps : 0;
  }
  FATHOM_DEVICE FewTask get(int n) const {
    const int i = warp + n * p.few_down.warps - of_shared, slices = 1 << p.log2_down_slices;
    if (i < 0) return {-1, 0, (i + of_shared) % slices, (i + of_shared) / slices, true};
    const int tile = i >> p.log2_down_slices;
    const auto slots = shuffle_word(tiles.slots, tile);
    return {device::shuffle_int(tiles.expert, tile), slots, i % slices, 0, true};
  }
  FATHOM_DEVICE const Weight& weight(const FewTask& t, int) const { return t.expert < 0 ? p.s2 : p.w2; }
  FATHOM_DEVICE const TensorMap* map(const FewTask& t, int) const { return t.expert < 0 ? &maps.s2 : &maps.w2; }
  FATHOM_DEVICE int row_of(const FewTask& t, int m) const { return row + (t.expert < 0 ? t.part : m) * kGroupRows; }
  FATHOM_DEVICE int log2_slices(const FewTask&) const { return p.log2_down_slices; }
};

/// Where a task's columns begin, in blocks of 128, and how many units it has.
struct FewSlice {
  int first, units;
};
FATHOM_DEVICE FewSlice slice_of(const Weight& w, const FewTask& t, int log2_slices) {
  const int first = first_block(w.blocks, log2_slices, t.slice), end = first_block(w.blocks, log2_slices, t.slice + 1);
  return {first, (end - first) * block_units(t.expert < 0 ? ExpertFormat::fp8 : ExpertFormat::mxfp4)};
}

/// The ring of a warp: lines of its tasks, one after the other. A line is two boxes: 128 bytes of 2 x 16 rows, with
/// their scales, or 256 bytes of 16 rows of the shared expert.
struct FewRing {
  std::byte *ring, *scales;  // of the warp
  Phases* arrived;
  int stages, lane;
  int task = 0, at = 0, units = 0;  // what is asked for next: task - 1, from unit `at` on
  const TensorMap* map[2] = {};
  const uint8_t* scale[2] = {};                          // of row lane / 2, the first unit of the task
  int column[2] = {}, row[2] = {}, plane = 0, line = 2;  // units of a line
  int free;                                              // stages
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
    const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices(t));
    FATHOM_UNROLL
    for (int m = 0; m < 2; ++m) {
      const Weight& w = tasks.weight(t, m);
      map[m] = tasks.map(t, m), row[m] = tasks.row_of(t, m), scale[m] = nullptr;
      column[m] = t.expert < 0 ? s.first * kBlock + m * kLineBytes : s.first * kUnitBytes;
      if (t.expert >= 0)
        scale[m] = w.scale + t.expert * w.expert_scale + int64_t{row[m] + lane / 2} * w.scale_row + s.first * 4;
    }
    plane = t.expert < 0 ? 0 : t.expert, line = t.expert < 0 ? 4 : 2;
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
          device::copy_weight_box(ring + to * kFewStage + m * kMatrixBytes, map[m], column[m] + at * kUnitBytes, row[m],
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
      at += line, --free, to = to + 1 == stages ? 0 : to + 1;
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
  /// Groups 2 pair and 2 pair + 1 of a unit: word 2 i is this thread's of row g, word 2 i + 1 that of row g + 8.
  FATHOM_DEVICE void read_groups(uint32_t (&words)[4], int m, int half, int pair) const {
    const int row = lane % 16, piece = half * 4 + pair * 2 + lane / 16;
    device::load_matrices(words, ring + stage * kFewStage + m * kMatrixBytes + device::box_place(row, piece));
  }
  /// The scales of a unit's groups for rows g and g + 8, a byte each.
  FATHOM_DEVICE void read_scales(uint32_t& low, uint32_t& high, int m, int half) const {
    const auto* from =
        reinterpret_cast<const uint32_t*>(scales + stage * kFewScaleBytes + m * (kFewScaleBytes / 2)) + lane / 4 * 2;
    low = from[half], high = from[16 + half];
  }
  FATHOM_DEVICE void advance() {
    ++free;
    if (++stage == stages) stage = 0, ++round;
  }
};

/// Scales of task n where it is one of the shared expert: lane b holds that of block b.
template <typename Tasks>
FATHOM_DEVICE uint32_t shared_scales(const Tasks& tasks, int n, int lane) {
  if (n >= tasks.count) return 0;
  const FewTask t = tasks.get(n);
  if (t.expert >= 0) return 0;
  const Weight& w = tasks.weight(t, 0);
  const FewSlice s = slice_of(w, t, tasks.log2_slices(t));
  return lane < s.units / 2 ? w.scale[tasks.row_of(t, 0) / kBlock * w.scale_row + s.first + lane] : 0;
}

/// Activations of a task: the row of token lane / 4. For codes in the order of bytes they are codes widened to fp16,
/// and their scales, one for each block, lie behind the rows: those of tokens 2 t and 2 t + 1.
struct FewX {
  const std::byte* row;
  const float* scale[2];
};

/// A whole task of the shared expert. `scales`: those of its blocks.
template <typename Tasks>
FATHOM_DEVICE void shared_product(float (&sum)[4], FewRing& ring, const Tasks& tasks, const FewTask& t, uint32_t scales,
                                  const FewX& activations, int lane) {
  const std::byte* x = activations.row;
  constexpr ExpertFormat kFormat = ExpertFormat::fp8;
  const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices(t));
  x += s.first * kBlockBytes;
  sum[0] = sum[1] = sum[2] = sum[3] = 0;
  FATHOM_UNROLL_1
  for (int box = 0; 2 * box < s.units; ++box, x += kBlockBytes) {
    if (box % 2 == 0) ring.wait(), ring.fill(tasks);
    uint32_t factor[2];
    factor[0] = factor[1] = power_pair(shuffle_word(scales, box), 120 - kHeadroom);
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      Unit unit;
      ring.read(unit, box % 2, half);
      FATHOM_UNROLL
      for (int step = 0; step < unit_steps(kFormat); ++step) {
        const Float4 b = *reinterpret_cast<const Float4*>(x + piece_of<kFormat, false>(half, step, lane) * 16);
        uint32_t a[2][4];
        decode_step<kFormat, false>(unit.low, factor, step, a[0]);
        decode_step<kFormat, false>(unit.high, factor, step, a[1]);
        stream_half<0>(sum, a, b), stream_half<1>(sum, a, b);
      }
    }
    if (box % 2 == 1 || 2 * box + 2 >= s.units) ring.advance();
  }
}

/// A whole task of a routed expert.
template <typename Tasks>
FATHOM_DEVICE void routed_product(float (&sum)[2][4], FewRing& ring, const Tasks& tasks, const FewTask& t,
                                  const FewX& activations, int lane) {
  const std::byte* x = activations.row;
  constexpr ExpertFormat kFormat = ExpertFormat::mxfp4;
  const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices(t));
  x += s.first * kBlockBytes;
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0;
  FATHOM_UNROLL_1
  for (int line = 0; 2 * line < s.units; ++line) {
    ring.wait(), ring.fill(tasks);
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half, x += kBlockBytes) {
      if (2 * line + half >= s.units) continue;
      Unit unit[2];
      uint32_t low[2][2], high[2][2];
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) ring.read(unit[m], m, half), ring.read_factors(low[m], high[m], m, half);
      FATHOM_UNROLL
      for (int step = 0; step < unit_steps(kFormat); ++step) {
        const Float4 b = *reinterpret_cast<const Float4*>(x + piece_of<kFormat, false>(0, step, lane) * 16);
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

/// Eight e4m3 codes as fp16, in the order of the products of codes in the order of bytes: (1,3) (0,2) (5,7) (4,6).
FATHOM_DEVICE void widen_codes(uint32_t first, uint32_t second, uint32_t (&out)[4]) {
  const uint32_t a = device::byte_permute(first, first, 0x2031), b = device::byte_permute(second, second, 0x2031);
  out[0] = device::decode_codes<0>(a), out[1] = device::decode_codes<1>(a);
  out[2] = device::decode_codes<0>(b), out[3] = device::decode_codes<1>(b);
}
/// Eight fp4 codes in the order of bytes times 2^-14, likewise.
FATHOM_DEVICE void widen_fp4(uint32_t codes, uint32_t (&out)[4]) {
  const uint32_t second = fp4_bytes(codes, 1);
  out[0] = codes & 0x8E008E00u, out[1] = codes << 8 & 0x8E008E00u;
  out[2] = second & 0xFF00FF00u, out[3] = device::byte_permute(second, 0, 0x2404);
}

/// sum (+)= rows g (low) and g + 8 (high) of eight columns for each t, times x.
template <bool kFirst>
FATHOM_DEVICE void multiply_eights(float (&sum)[4], const uint32_t (&low)[4], const uint32_t (&high)[4],
                                   const Float4& x) {
  const uint32_t first[4] = {low[0], high[0], low[1], high[1]}, second[4] = {low[2], high[2], low[3], high[3]};
  if constexpr (kFirst)
    device::mma_f16_first(sum, first, word(x.x), word(x.y));
  else
    device::mma_f16(sum, first, word(x.x), word(x.y));
  device::mma_f16(sum, second, word(x.z), word(x.w));
}

/// shared_product() for activations in fp16: sums of a block are scaled.
template <typename Tasks>
FATHOM_DEVICE void shared_blocks(float (&sum)[4], FewRing& ring, const Tasks& tasks, const FewTask& t, uint32_t scales,
                                 const FewX& activations, int lane) {
  const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices(t));
  const std::byte* x = activations.row + s.first * kBlockBytes;
  sum[0] = sum[1] = sum[2] = sum[3] = 0;
  FATHOM_UNROLL_1
  for (int box = 0; 2 * box < s.units; ++box, x += kBlockBytes) {
    if (box % 2 == 0) ring.wait(), ring.fill(tasks);
    const float scale = to_float(e8m0{static_cast<uint8_t>(shuffle_word(scales, box))});
    float block[4] = {};
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      Unit unit;
      ring.read(unit, box % 2, half);
      const float low[4] = {unit.low.x, unit.low.y, unit.low.z, unit.low.w};
      const float high[4] = {unit.high.x, unit.high.y, unit.high.z, unit.high.w};
      FATHOM_UNROLL
      for (int step = 0; step < 2; ++step) {
        uint32_t a[2][4];
        widen_codes(word(low[2 * step]), word(low[2 * step + 1]), a[0]);
        widen_codes(word(high[2 * step]), word(high[2 * step + 1]), a[1]);
        multiply_eights<false>(block, a[0], a[1],
                               *reinterpret_cast<const Float4*>(x + (half * 8 + lane % 4 * 2 + step) * 16));
      }
    }
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) sum[i] = fmaf(block[i], activations.scale[i % 2][s.first + box] * scale, sum[i]);
    if (box % 2 == 1 || 2 * box + 2 >= s.units) ring.advance();
  }
}

/// routed_product() for codes in the order of bytes: sums of 32 columns are scaled.
template <typename Tasks>
FATHOM_DEVICE void routed_groups(float (&sum)[2][4], FewRing& ring, const Tasks& tasks, const FewTask& t,
                                 const FewX& activations, int lane) {
  const FewSlice s = slice_of(tasks.weight(t, 0), t, tasks.log2_slices(t));
  const std::byte* x = activations.row + s.first * kBlockBytes;
  const float* scale[2] = {activations.scale[0] + s.first, activations.scale[1] + s.first};
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0;
  FATHOM_UNROLL_1
  for (int line = 0; 2 * line < s.units; ++line) {
    ring.wait(), ring.fill(tasks);
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half, x += kBlockBytes) {
      const int unit = 2 * line + half;
      if (unit >= s.units) continue;
      uint32_t words[2][4], low[2], high[2];  // codes of two groups
      FATHOM_UNROLL
      for (int m = 0; m < 2; ++m) ring.read_scales(low[m], high[m], m, half);
      float total[2][4];
      FATHOM_UNROLL
      for (int group = 0; group < 4; ++group) {
        if (group % 2 == 0)
          ring.read_groups(words[0], 0, half, group / 2), ring.read_groups(words[1], 1, half, group / 2);
        const Float4 b = *reinterpret_cast<const Float4*>(x + (group * 4 + lane % 4) * 16);
        FATHOM_UNROLL
        for (int m = 0; m < 2; ++m) {
          uint32_t a[2][4];
          widen_fp4(words[m][group % 2 * 2], a[0]), widen_fp4(words[m][group % 2 * 2 + 1], a[1]);
          float of_group[4];
          multiply_eights<true>(of_group, a[0], a[1], b);
          const float factor[2] = {group_scale(low[m], group), group_scale(high[m], group)};
          FATHOM_UNROLL
          for (int i = 0; i < 4; ++i)
            total[m][i] = group == 0 ? of_group[i] * factor[i / 2] : fmaf(of_group[i], factor[i / 2], total[m][i]);
        }
      }
      FATHOM_UNROLL
      for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = fmaf(total[i / 4][i % 4], scale[i % 2][unit], sum[i / 4][i % 4]);
    }
    ring.advance();
  }
}

/// A whole task. `kBytes`: codes lie in the order of bytes, activations are fp16.
template <bool kBytes, typename Tasks>
FATHOM_DEVICE void few_product(float (&sum)[2][4], FewRing& ring, const Tasks& tasks, const FewTask& t, uint32_t scales,
                               const FewX& x, int lane) {
  if constexpr (kBytes) {
    if (t.expert < 0) return shared_blocks(sum[0], ring, tasks, t, scales, x, lane);
    return routed_groups(sum, ring, tasks, t, x, lane);
  }
  if (t.expert < 0) return shared_product(sum[0], ring, tasks, t, scales, x, lane);
  routed_product(sum, ring, tasks, t, x, lane);
}

/// What is left to multiply the sums of a task with.
template <bool kBytes>
FATHOM_DEVICE float few_restore(bool routed) {
  if constexpr (kBytes) return routed ? kBytesRestore : 1.0f;
  return 4294967296.0f;  // 2^kHeadroom
}

/// Calls `put(token column, row of 16, sum)` for what this lane holds of real tokens.
template <typename Put>
FATHOM_DEVICE void for_few_sums(const float (&sum)[4], int tokens, int lane, const Put& put) {
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int column = lane % 4 * 2 + i % 2;
    if (column < tokens) put(column, lane / 4 + i / 2 * 8, sum[i]);
  }
}

}  // namespace fathom::ops::moe
