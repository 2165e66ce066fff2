// Splits that form a cluster become one output through each other's shared memory: no partial result in global memory,
// no counter, no waiting for blocks that might not run (a cluster is resident as a whole).
//
// A warp owns a slice of channels. It divides its output by the heads' sums, as fp16 (decode_combine.cuh), and sends
// each block the quads that this block is to sum up, with the states of the heads in front, as one message. An mbarrier
// counts the bytes that come in; messages and signal travel together.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_combine.cuh"

namespace fathom::ops::sparse_decode {

/// A message: float2 [16 heads] (reference, sum), the slice's factor, kRun quads of 32 lanes.
template <typename G>
struct Message {
  static_assert(G::kMTiles == 1 && (G::kCluster == 8 || G::kCluster == 16));
  static constexpr int kRun = 64 / G::kCluster;  // quads that a block sums up, all of one slice
  static constexpr int kEach = 8 / kRun;         // messages of a warp
  static constexpr int kFactorAt = G::kHeads * 8, kQuadsAt = kFactorAt + 16;
  static constexpr int kBytes = kQuadsAt + kRun * 32 * 8;
  static_assert(kBytes == G::kMessageBytes);
};

template <typename G>
FATHOM_DEVICE device::Phases* inbox_barrier(const Shared<G>& shared) {
  return reinterpret_cast<device::Phases*>(shared.base + G::kBarrierAt);
}

/// First of all: makes the inbox ready and tells the cluster.
template <typename G>
FATHOM_DEVICE void open_inbox(const Shared<G>& shared, const Place& at) {
  if (at.thread == 0) {
    device::init_phases(inbox_barrier(shared), 1);
    device::publish_phases();
  }
  device::sync_warp();
  device::arrive_cluster_relaxed();
}

/// One thread, once the number of splits that have rows is known. The block's message to itself does not travel.
template <typename G>
FATHOM_DEVICE void expect_messages(const Shared<G>& shared, int senders) {
  const int others = senders - (device::block_x() < senders ? 1 : 0);
  device::arrive_and_expect(inbox_barrier(shared), others * Message<G>::kBytes);
}

/// Sends the warp's slice to the blocks that sum it up.
template <typename G>
FATHOM_DEVICE void send_slice(const Shared<G>& shared, const Place& at, Output<G>& output) {
  using M = Message<G>;
  const bool fp8 = slice_is_fp8(G::kFormat, at.warp);
  const float factor = fp8 ? normalise<G, true>(shared.state(), output) : normalise<G, false>(shared.state(), output);
  std::byte* outbox = shared.base + G::kOutboxAt + at.warp * (M::kEach * M::kBytes);
  std::byte* inbox = shared.base + G::kInboxAt + device::block_x() * M::kBytes;  // the same place in every block
  FATHOM_UNROLL
  for (int i = 0; i < M::kEach; ++i) {
    const bool own = M::kEach * at.warp + i == device::block_x();  // the block's message to itself
    std::byte* message = own ? inbox : outbox + i * M::kBytes;
    reinterpret_cast<float*>(message)[at.lane] = shared.state()[at.lane];
    if (at.lane < 4) reinterpret_cast<float*>(message + M::kFactorAt)[at.lane] = factor;
    FATHOM_UNROLL
    for (int k = 0; k < M::kRun; ++k) {
      const int quad = i * M::kRun + k;
      float v[4];
      if (fp8)
        take_quad<true>(output.sum[0], quad / 4, quad % 4, v);
      else
        take_quad<false>(output.sum[0], quad / 4, quad % 4, v);
      reinterpret_cast<uint64_t*>(message + M::kQuadsAt)[k * 32 + at.lane] = pack_quad(v);
    }
  }
  device::publish_to_products();
  device::sync_warp();
  if (at.lane < M::kEach && M::kEach * at.warp + at.lane != device::block_x())
    device::copy_to_cluster(inbox, M::kEach * at.warp + at.lane, outbox + at.lane * M::kBytes, M::kBytes,
                            inbox_barrier(shared));
}

/// Sums up quad `k` of this block's quads over the messages of `senders` splits.
template <typename G>
FATHOM_DEVICE void sum_messages(const Shared<G>& shared, const Params& p, const Place& at, int token, int first_head,
                                int senders, int k) {
  using M = Message<G>;
  constexpr int kCount = G::kCluster / 4;
  const int item = device::block_x() * M::kRun + k, slice = item / 8, quad = item % 8;
  const int local = 8 * (quad / 4) + at.g, head = first_head + local;
  const std::byte* inbox = shared.base + G::kInboxAt;
  SplitStates<kCount> states;
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const int split = 4 * i + at.t;
    states.reference[i] = -__builtin_huge_valf(), states.sum[i] = 0;
    if (split >= senders) continue;
    const auto* message = reinterpret_cast<const float*>(inbox + split * M::kBytes);
    states.reference[i] = message[2 * local], states.sum[i] = message[2 * local + 1];
  }
  states.weigh(sink_of(shared, p, local));
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i)
    if (4 * i + at.t < senders)
      states.sum[i] *= *reinterpret_cast<const float*>(inbox + (4 * i + at.t) * M::kBytes + M::kFactorAt);
  float sum[4] = {};
  FATHOM_UNROLL_1
  for (int first = 0; first < senders; first += 4) {
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float w = device::shuffle_from(states.sum[0], 4 * at.g + i);
      const int split = first + i < senders ? first + i : senders - 1;  // beyond the last: weight 0
      float v[4];
      unpack_quad(reinterpret_cast<const uint64_t*>(inbox + split * M::kBytes + M::kQuadsAt)[k * 32 + at.lane], v);
      FATHOM_UNROLL
      for (int c = 0; c < 4; ++c) sum[c] += w * v[c];
    }
    FATHOM_UNROLL
    for (int i = 0; i + 1 < kCount; ++i) states.sum[i] = states.sum[i + 1];
  }
  if (head >= p.heads) return;
  if (p.lse && slice == 0 && quad % 4 == 0 && at.t == 0)
    p.lse[token * p.lse_token_stride + head] = head_lse(states.most, states.total);
  uint32_t word[1][2] = {{device::pack_bf16x2(sum[0], sum[1]), device::pack_bf16x2(sum[2], sum[3])}};
  store_sums<G>(shared, p, token, head, slice, quad, word);
}

/// The end of a block's work: sends its part, sums up its share of the channels. Blocks without rows only sum.
template <typename G>
FATHOM_DEVICE void exchange(const Shared<G>& shared, const Params& p, const Place& at, int token, int first_head,
                            int senders, Output<G>& output) {
  device::await_cluster();  // all inboxes are open
  if (device::block_x() < senders) send_slice<G>(shared, at, output);
  device::sync_block();  // the block's message to itself; sinks, rotations and the count of a block without rows
  device::await(inbox_barrier(shared), 0);
  device::arrive_cluster_relaxed();  // whoever has all messages lets their senders go
  if (at.warp < Message<G>::kRun) sum_messages<G>(shared, p, at, token, first_head, senders, at.warp);
  device::sync_warp();
  device::await_cluster();
}

}  // namespace fathom::ops::sparse_decode
