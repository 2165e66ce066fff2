// Both products of the experts for the fewest tokens in one launch (sm_90, MXFP4): as moe_few.cuh, but a warp's ring
// goes on from its tasks of up to those of down, so memory is busy while hidden rows are handed over between the
// blocks.
//
// All blocks must be there at once, one on a multiprocessor, which the plan sees to. They meet once, at a gate in
// memory. The same device functions in the same order: the bits are those of the two launches. The products are there
// once for both, so their code is near when down begins.
#pragma once

#include "ops/experts/moe_few.cuh"
#include "ops/residual_mix/end_kernel.cuh"

namespace fathom::ops::moe {

static_assert(2 * kGroupRows == kSumChannels && kFewUpWarps >= mix::kFewWarps * kEndTokens);

/// The tasks of a warp: those of up, then those of down.
struct BothTasks {
  UpTasks up;
  DownTasks down;
  int count;

  FATHOM_DEVICE BothTasks(const Params& p, const Maps& m) : up(p, m), down(p, m), count(up.count) {}
  FATHOM_DEVICE void set_tiles() {
    up.set_tiles();
    down.set_tiles(up.tiles);
    count = up.count + down.count;
  }
  FATHOM_DEVICE FewTask get(int n) const { return n < up.count ? up.get(n) : down.get(n - up.count); }
  FATHOM_DEVICE const Weight& weight(const FewTask& t, int m) const {
    return t.down ? down.weight(t, m) : up.weight(t, m);
  }
  FATHOM_DEVICE const TensorMap* map(const FewTask& t, int m) const { return t.down ? down.map(t, m) : up.map(t, m); }
  FATHOM_DEVICE int row_of(const FewTask& t, int m) const { return t.down ? down.row_of(t, m) : up.row_of(t, m); }
  FATHOM_DEVICE int log2_slices(const FewTask& t) const { return t.down ? down.log2_slices(t) : up.log2_slices(t); }
};

/// All blocks of the grid come here; what they wrote is then visible to all. All threads. `target`: read_gate().
FATHOM_DEVICE uint32_t read_gate(const Gate* gate) {
  return device::load_l2(&gate->before) + static_cast<uint32_t>(device::grid_x());
}
/// The plan takes no more blocks than there are multiprocessors, one on each. Where another process keeps some of them
/// out (MPS), an error after some ten seconds is better than to wait for ever.
FATHOM_DEVICE void pass_gate(Gate* gate, uint32_t target) {
  constexpr uint32_t kHopeless = 1u << 24;  // looks, of 0.6 us and more
  device::sync_block();
  if (device::thread_index() == 0) {
    device::fence();
    device::atomic_add(&gate->arrived, 1u);
    for (uint32_t looks = 0; static_cast<int32_t>(device::load_acquire(&gate->arrived) - target) < 0; ++looks) {
      if (looks == kHopeless) device::trap();
      device::rest();
    }
    if (device::block_x() == 0) gate->before = target;  // all have read it
  }
  device::sync_block();
}

/// Grid: the larger of the two.
template <bool kBytes>
FATHOM_DEVICE void few_both(const Params& p, const Maps& maps, std::byte* shared) {
  const int lane = device::lane_index();
  BothTasks tasks(p, maps);
  FewRing ring(p.few_up, shared, lane);
  std::byte* rows = shared + p.few_up.rows;
  auto* sums = reinterpret_cast<float*>(shared + p.few_down.sums);
  const Meeting of_group(p, shared, tasks.up.group), of_shared(p, shared, tasks.up.groups);
  if (device::warp_index() % kMaxSlices == 0 && lane == 0) of_group.init(of_group.slices);
  if (device::thread_index() == 0) of_shared.init(2 * of_group.slices);
  const bool sums_rows = device::block_x() * (2 * kGroupRows) < p.d;
  const mix::EndMemory end(shared + p.few_up.end);
  ring.fill(tasks);  // of the shared expert
  if (p.end.streams && sums_rows) mix::ask_end(p.end, p.tokens, end, 32 * kFewUpWarps);
  uint32_t scales = shared_scales(tasks, 0, lane), target = 0;
  if (!p.x_is_old) device::wait_for_previous_kernel();
  stage_x<kBytes>(p, rows);
  device::sync_block();
  int n = 0;
  FATHOM_UNROLL_1
  for (int part = 0; part < 3; ++part) {  // the shared expert of up, the others, down
    const bool down = part == 2;
    if (part == 1) {
      device::wait_for_previous_kernel();  // the choice
      device::let_next_kernel_start();
      target = read_gate(p.gate);
      tasks.set_tiles();
      device::sync_warp();
      ring.fill(tasks);
    } else if (down) {
      scales = shared_scales(tasks, n, lane);
      pass_gate(p.gate, target);
      stage_hidden<kBytes>(p, tasks.up.tiles.live, rows);
      device::sync_block();
    }
    const int end_of_part = part == 0 ? tasks.up.of_shared : part == 1 ? tasks.up.count : tasks.count;
    FATHOM_UNROLL_1
    for (; n < end_of_part; ++n) {
      const FewTask t = tasks.get(n);
      const int tokens = few_tokens(p, t);
      const FewX x = find_x(rows, down ? p.few_down.row_pitch : p.few_up.row_pitch, down ? p.hidden_pitch : p.d, tokens,
                            lane, [&](int column) {
                              const int slot = few_slot(p, t, column);
                              return down ? slot : t.expert < 0 ? slot - p.tokens * p.choices : slot / p.choices;
                            });
      float sum[2][4];
      few_product<kBytes>(sum, ring, tasks, t, scales, x, lane);
      if (down)
        keep_down(p, t, tokens, sum, sums, lane);
      else if (t.expert < 0)
        end_shared<kBytes>(p, tasks.up, of_shared, t, sum[0], lane);
      else
        end_routed<kBytes>(p, tasks.up, of_group, t, n - tasks.up.of_shared, sum, lane);
    }
  }
  device::copy_async_wait<0>();
  device::sync_block();
  if (!sums_rows) return;
  few_sum<kBytes>(p, tasks.up.tiles.live, sums, p.end.streams ? end.y : nullptr);
  if (!p.end.streams) return;
  device::sync_block();
  mix::end_slice(p.end, p.tokens, end);
}

}  // namespace fathom::ops::moe
