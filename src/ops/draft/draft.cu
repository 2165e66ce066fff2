#include "ops/device/launch.cuh"
#include "ops/draft/draft_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(draft::kThreads) mean_of_streams(const __grid_constant__ StreamMeanArgs a) {
  draft::mean_block(a);
}
__global__ void __launch_bounds__(draft::kThreads) join_of_streams(const __grid_constant__ StreamJoinArgs a) {
  draft::join_block(a);
}
__global__ void __launch_bounds__(draft::kThreads) markov_rows(const __grid_constant__ MarkovArgs a, bf16* rows) {
  draft::gather_block(a, rows);
}
__global__ void __launch_bounds__(draft::kThreads)
    markov_add(const __grid_constant__ MarkovArgs a, const float* product) {
  __shared__ double shared[draft::kThreads / 32];
  draft::add_block(a, product, shared);
}

}  // namespace

void stream_mean_sm80(const StreamMeanArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.streams.size[2], draft::kBlockChannels),
                  static_cast<unsigned>(a.streams.size[0]));
  device::launch("stream_mean", mean_of_streams, {grid, draft::kThreads, 0, l.device.compute_capability >= 90},
                 l.stream, a);
}

void stream_join_sm80(const StreamJoinArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.stream.size[2], draft::kBlockChannels), static_cast<unsigned>(a.rows.size[0]),
                  static_cast<unsigned>(a.stream.size[1]));
  device::launch("stream_join", join_of_streams, {grid, draft::kThreads, 0, l.device.compute_capability >= 90},
                 l.stream, a);
}

void launch_markov_rows(const MarkovArgs& a, const Launch& l, bf16* rows) {
  device::launch("markov", markov_rows, {dim3(static_cast<unsigned>(a.token.size[0])), draft::kThreads, 0, false},
                 l.stream, a, rows);
}

void launch_markov_add(const MarkovArgs& a, const Launch& l, const float* product) {
  const dim3 grid(device::blocks_for(a.logits.size[1], draft::kThreads) + 1, static_cast<unsigned>(a.token.size[0]));
  device::launch("markov", markov_add, {grid, draft::kThreads, 0, l.device.compute_capability >= 90}, l.stream, a,
                 product);
}

}  // namespace fathom::ops
