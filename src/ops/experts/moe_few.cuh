// The expert kernels for few tokens on sm_90 (MXFP4): up to 32 slots, two launches, no counters.
//
// A block has 16 rows of w1 and of w3 (32 rows of w2) of *every* tile, so that all multiprocessors read the same number
// of bytes and what belongs together meets in the shared memory of one block. A warp's task is these rows times one
// slice of the columns; the copy unit brings its weights, 128 bytes of the 2 x 16 rows at a time, to a ring of the warp
// that goes on from task to task. Blocks find the tiles from the router's choice themselves.
//
// *Up* begins with the shared expert, which needs no choice (`x_is_old`: while the router still runs), and leaves
// hidden rows as computed. *Down* asks for its first weights before up has ended, quantises the hidden rows into shared
// memory, and adds the experts of a token there. Sums are those of the other kernels, in the same order: the same bits.
#pragma once

#include "ops/experts/moe_few_product.cuh"

namespace fathom::ops::moe {

/// The e4m3 code in the low byte, without branches.
FATHOM_DEVICE float widen(uint32_t code) {
  constexpr float kUp = 1329227995784915872903807060280344576.0f;  // 2^120
  const float v = std::bit_cast<float>((code & 0x80) << 24 | (code & 0x7F) << 20) * kUp;
  return (code & 0x7F) == 0x7F ? std::bit_cast<float>(0x7FC00000u) : v;
}

/// x as bf16 in product order, into shared memory, or as fp16 with its scales behind; all threads.
template <bool kBytes>
FATHOM_DEVICE void stage_x(const Params& p, std::byte* rows) {
  FATHOM_UNROLL_1
  for (int token = 0; token < p.tokens; ++token) {
    const auto* codes = reinterpret_cast<const uint64_t*>(p.x + token * p.x_stride);
    const e8m0* scale = p.x_scale + token * p.x_scale_stride;
    std::byte* to = rows + token * p.few_up.row_pitch;
    FATHOM_UNROLL_1
    for (int i = device::thread_index(); i < p.d / 8; i += 32 * p.few_up.warps) {
      const uint64_t eight = device::load_l2(codes + i);
      if constexpr (kBytes) {
        Words4 words;
        widen_codes(static_cast<uint32_t>(eight), static_cast<uint32_t>(eight >> 32), words.word);
        *reinterpret_cast<Words4*>(to + i * 16) = words;
        if (i % 16 == 0) reinterpret_cast<float*>(to + 2 * p.d)[i / 16] = to_float(scale[i / 16]);
        continue;
      }
      const float factor = to_float(scale[i / 16]);
      float v[8];
      FATHOM_UNROLL
      for (int k = 0; k < 8; ++k) v[k] = widen(static_cast<uint32_t>(eight >> 8 * k)) * factor;
      *reinterpret_cast<Words4*>(to + i / 16 * kBlockBytes + place_of(i % 16)) = product_order(v);
    }
  }
}

/// The activations of a task: `row_of(column)` is the row of column `column` of the tensor core tile in `rows`, which
/// are `width` wide.
template <typename RowOf>
FATHOM_DEVICE FewX find_x(const std::byte* rows, int pitch, int width, int tokens, int lane, const RowOf& row_of) {
  const auto at = [&](int column) { return rows + row_of(column < tokens ? column : tokens - 1) * pitch; };
  const int even = lane % 4 * 2;
  return {
      at(lane / 4),
      {reinterpret_cast<const float*>(at(even) + 2 * width), reinterpret_cast<const float*>(at(even + 1) + 2 * width)}};
}

/// Where the warps of a group hand over the sums of a tile: two places in turn. The last group is that of the shared
/// expert, with one place.
struct Meeting {
  Phases *done, *free;  // [2] each
  float* sums;          // [2][slice][matrix][tokens][16]
  int slices, tokens;

  FATHOM_DEVICE Meeting(const Params& p, std::byte* shared, int group) {
    auto* phases = reinterpret_cast<Phases*>(shared + p.few_up.meeting) + group * 4;
    done = phases, free = phases + 2;
    slices = 1 << p.log2_up_slices, tokens = p.tokens;
    sums = reinterpret_cast<float*>(shared + p.few_up.sums) + group * 2 * size();
  }
  FATHOM_DEVICE int size() const { return 2 * slices * tokens * kGroupRows; }
  FATHOM_DEVICE void init(int warps) const {
    FATHOM_UNROLL_1
    for (int i = 0; i < 2; ++i) device::init_phases(done + i, 32 * warps), device::init_phases(free + i, 32);
    device::publish_phases();
  }
  /// Hands over this warp's sums.
  FATHOM_DEVICE void put(const float (&sum)[4], int round, int slice, int matrix, int count, int lane) const {
    float* to = at(round, slice, matrix);
    for_few_sums(sum, count, lane, [&](int i, int row, float v) { to[i * kGroupRows + row] = v; });
  }
  /// Each lane for what it stored: checkers of races do not follow a lane that arrives for its warp.
  FATHOM_DEVICE void arrive(int round) const { device::arrive(done + (round & 1)); }
  FATHOM_DEVICE float* at(int round, int slice, int matrix) const {
    return sums + (round & 1) * size() + (2 * slice + matrix) * tokens * kGroupRows;
  }
};

/// What comes after the products of a tile, by one warp of the group.
template <bool kBytes>
FATHOM_DEVICE void few_hidden(const Params& p, const Meeting& m, const FewTask& t, int first_row, int round, int lane) {
  const bool weighted = t.expert >= 0;
  const int tokens = few_tokens(p, t);
  const float factor = few_restore<kBytes>(weighted);
  FATHOM_UNROLL_1
  for (int i = lane; i < tokens * kGroupRows; i += 32) {
    const int column = i / kGroupRows, row = i % kGroupRows;
    float gate = 0, up = 0;
    FATHOM_UNROLL_1
    for (int s = 0; s < m.slices; ++s) gate += m.at(round, s, 0)[i], up += m.at(round, s, 1)[i];
    const int slot = few_slot(p, t, column);
    const float weight = weighted ? p.weight[slot / p.choices * p.weight_stride + slot % p.choices] : 1.0f;
    p.hidden[int64_t{slot} * p.hidden_pitch + first_row + row] =
        to_bf16(hidden_value(gate * factor, up * factor, p.limit, weight, weighted));
  }
}

/// What follows the product of the shared expert's task of a warp of up: the meeting and, for one warp, hidden rows.
template <bool kBytes>
FATHOM_DEVICE void end_shared(const Params& p, const UpTasks& tasks, const Meeting& m, const FewTask& t,
                              const float (&sum)[4], int lane) {
  m.put(sum, 0, t.slice, t.part, p.tokens, lane);
  m.arrive(0);
  if (t.slice != 0 || t.part != 0) return;
  device::await(m.done, 0);
  few_hidden<kBytes>(p, m, t, tasks.row, 0, lane);
}

/// The same for task number `round` of a routed expert.
template <bool kBytes>
FATHOM_DEVICE void end_routed(const Params& p, const UpTasks& tasks, const Meeting& m, const FewTask& t, int round,
                              const float (&sum)[2][4], int lane) {
  const int tokens = few_tokens(p, t);
  if (round >= 2) device::await(m.free + (round & 1), round / 2 - 1);
  FATHOM_UNROLL
  for (int i = 0; i < 2; ++i) m.put(sum[i], round, t.slice, i, tokens, lane);
  m.arrive(round);
  if (round % m.slices != t.slice) return;
  device::await(m.done + (round & 1), round / 2);
  few_hidden<kBytes>(p, m, t, tasks.row, round, lane);
  device::arrive(m.free + (round & 1));
}

/// Tasks of a warp of up: product, meeting, hidden rows.
template <bool kBytes>
FATHOM_DEVICE void up_shared(const Params& p, FewRing& ring, const UpTasks& tasks, const Meeting& m, uint32_t scales,
                             const std::byte* rows, int lane) {
  const FewTask t = tasks.get(0);
  const FewX x = find_x(rows, p.few_up.row_pitch, p.d, p.tokens, lane, [](int column) { return column; });
  float sum[2][4];
  few_product<kBytes>(sum, ring, tasks, t, scales, x, lane);
  end_shared<kBytes>(p, tasks, m, t, sum[0], lane);
}
template <bool kBytes>
FATHOM_DEVICE void up_routed(const Params& p, FewRing& ring, const UpTasks& tasks, const Meeting& m, int n,
                             const std::byte* rows, int lane) {
  const FewTask t = tasks.get(n);
  const FewX x = find_x(rows, p.few_up.row_pitch, p.d, few_tokens(p, t), lane,
                        [&](int column) { return few_slot(p, t, column) / p.choices; });
  float sum[2][4];
  few_product<kBytes>(sum, ring, tasks, t, 0, x, lane);
  end_routed<kBytes>(p, tasks, m, t, n - tasks.of_shared, sum, lane);
}

/// Grid: I / 16 times the shares.
template <bool kBytes>
FATHOM_DEVICE void few_up(const Params& p, const Maps& maps, std::byte* shared) {
  const int lane = device::lane_index();
  UpTasks tasks(p, maps);
  FewRing ring(p.few_up, shared, lane);
  std::byte* rows = shared + p.few_up.rows;
  const Meeting of_group(p, shared, tasks.group), of_shared(p, shared, tasks.groups);
  if (device::warp_index() % kMaxSlices == 0 && lane == 0) of_group.init(of_group.slices);
  if (device::thread_index() == 0) of_shared.init(2 * of_group.slices);
  ring.fill(tasks);  // of the shared expert
  const uint32_t scales = shared_scales(tasks, 0, lane);
  if (!p.x_is_old) device::wait_for_previous_kernel();
  stage_x<kBytes>(p, rows);
  device::sync_block();
  if (tasks.of_shared > 0) up_shared<kBytes>(p, ring, tasks, of_shared, scales, rows, lane);
  device::wait_for_previous_kernel();  // the choice
  device::let_next_kernel_start();
  tasks.set_tiles();
  device::sync_warp();
  ring.fill(tasks);
  FATHOM_UNROLL_1
  for (int n = tasks.of_shared; n < tasks.count; ++n) up_routed<kBytes>(p, ring, tasks, of_group, n, rows, lane);
}

/// Eight of the 128 channels that half a warp has, quantised: codes as fp16 in the order of widen_codes().
FATHOM_DEVICE Words4 quantized_halves(const Float4& eight, float& scale_of) {
  float v[8];
  quantize_eight(eight, v, [&](float scale) {
    scale_of = scale;
    return 1.0f;
  });
  return {{device::pack_f16x2(v[1], v[3]), device::pack_f16x2(v[0], v[2]), device::pack_f16x2(v[5], v[7]),
           device::pack_f16x2(v[4], v[6])}};
}

/// Quantises the hidden rows and puts them in product order into shared memory; all threads. Half a warp has 128
/// channels of a slot.
template <bool kBytes>
FATHOM_DEVICE void stage_hidden(const Params& p, uint32_t live, std::byte* rows) {
  const int lane = device::lane_index(), half = lane / 16, warps = p.few_down.warps;
  const int routed = p.tokens * p.choices, slots = routed + (p.shared_tiles > 0 ? p.tokens : 0);
  const int groups = p.hidden_pitch / kBlock, all = slots * groups, inverse = ((1 << 20) + groups - 1) / groups;
  // Calls `work(slot, group, lives)` for this half warp; the same for whole warps.
  const auto for_own = [&](const auto& work) {
    FATHOM_UNROLL_1
    for (int first = device::warp_index() * 2; first < all; first += 2 * warps) {
      const int i = first + half, slot = i * inverse >> 20, group = i - slot * groups;  // slot: i / groups
      const bool lives = slot < routed ? group < p.w2.blocks && (live >> slot & 1) != 0 : group < p.s2.blocks;
      work(slot, group, i < all && lives);
    }
  };
  for_own([&](int slot, int group, bool lives) {
    if (!lives) return;
    const bf16* from = p.hidden + int64_t{slot} * p.hidden_pitch + group * kBlock + lane % 16 * 8;
    device::copy_async_16(rows + slot * p.few_down.row_pitch + group * kBlockBytes + lane % 16 * 16, from, true);
  });
  device::copy_async_commit();
  device::copy_async_wait<0>();
  device::sync_warp();
  for_own([&](int slot, int group, bool lives) {
    std::byte* at = rows + slot * p.few_down.row_pitch + group * kBlockBytes;
    const Float4 eight = lives ? reinterpret_cast<const Float4*>(at)[lane % 16] : Float4{0, 0, 0, 0};
    if constexpr (kBytes) {
      float scale;
      const Words4 words = quantized_halves(eight, scale);
      device::sync_warp();
      if (!lives) return;
      reinterpret_cast<Words4*>(at)[lane % 16] = words;
      if (lane % 16 == 0)
        reinterpret_cast<float*>(rows + slot * p.few_down.row_pitch + 2 * p.hidden_pitch)[group] = scale;
      return;
    }
    const Words4 words = quantized_words(eight);
    device::sync_warp();  // all have read what is overwritten now
    if (lives) *reinterpret_cast<Words4*>(at + place_of(lane % 16)) = words;
  });
}

/// y of the block's 32 rows: for each token its experts in ascending order, then the shared one. `sums`:
/// [slot][slice][32]. `keep`: also there, [token][32]; null: not.
template <bool kBytes>
FATHOM_DEVICE void few_sum(const Params& p, uint32_t live, const float* sums, float* keep) {
  constexpr int kRows = 2 * kGroupRows;
  const int slices = 1 << p.log2_down_slices, first_row = device::block_x() * kRows;
  FATHOM_UNROLL_1
  for (int i = device::thread_index(); i < p.tokens * kRows; i += 32 * p.few_down.warps) {
    const int token = i / kRows, row = i % kRows;
    float total = 0;
    const auto add = [&](int slot, float factor) {
      const float* from = sums + slot * slices * kRows + row;
      float sum = 0;
      FATHOM_UNROLL_1
      for (int s = 0; s < slices; ++s) sum += from[s * kRows];
      total += round_bf16(sum * factor);
    };
    const float factor = few_restore<kBytes>(true);
    FATHOM_UNROLL_1
    for (int c = 0; c < p.choices; ++c)
      if (live >> (token * p.choices + c) & 1) add(token * p.choices + c, factor);
    if (p.shared_tiles > 0) add(p.tokens * p.choices + token, few_restore<kBytes>(false));
    if (keep) keep[i] = total;
    if (p.sum)
      p.sum[token * p.sum_stride + first_row + row] = total;
    else
      p.y[token * p.y_stride + first_row + row] = to_bf16(total);
  }
}

/// Keeps the sums of a task of down where few_sum() looks for them.
FATHOM_DEVICE void keep_down(const Params& p, const FewTask& t, int tokens, const float (&sum)[2][4], float* sums,
                             int lane) {
  constexpr int kRows = 2 * kGroupRows;
  const auto keep = [&](const float(&s)[4], int part) {
    for_few_sums(s, tokens, lane, [&](int i, int row, float v) {
      const int place = (few_slot(p, t, i) << p.log2_down_slices) + t.slice;
      sums[place * kRows + part * kGroupRows + row] = v;
    });
  };
  keep(sum[0], t.expert < 0 ? t.part : 0);
  if (t.expert >= 0) keep(sum[1], 1);
}

/// Grid: rows of d / 32.
template <bool kBytes>
FATHOM_DEVICE void few_down(const Params& p, const Maps& maps, std::byte* shared) {
  const int lane = device::lane_index();
  FewRing ring(p.few_down, shared, lane);
  DownTasks tasks(p, maps);
  tasks.set_tiles(find_tiles(p));  // the choice is older than up
  ring.fill(tasks);
  const uint32_t scales = shared_scales(tasks, 0, lane);
  std::byte* rows = shared + p.few_down.rows;
  auto* sums = reinterpret_cast<float*>(shared + p.few_down.sums);
  device::wait_for_previous_kernel();  // the hidden rows
  device::let_next_kernel_start();
  stage_hidden<kBytes>(p, tasks.tiles.live, rows);
  device::sync_block();
  FATHOM_UNROLL_1
  for (int n = 0; n < tasks.count; ++n) {
    const FewTask t = tasks.get(n);
    const int tokens = few_tokens(p, t);
    const FewX x = find_x(rows, p.few_down.row_pitch, p.hidden_pitch, tokens, lane,
                          [&](int column) { return few_slot(p, t, column); });
    float sum[2][4];
    few_product<kBytes>(sum, ring, tasks, t, scales, x, lane);
    keep_down(p, t, tokens, sum, sums, lane);
  }
  device::sync_block();
  few_sum<kBytes>(p, tasks.tiles.live, sums, nullptr);
}

}  // namespace fathom::ops::moe
