#include "ops/choose/choose_kernel.cuh"
#include "ops/choose/draw_kernel.cuh"
#include "ops/device/launch.cuh"

namespace fathom::ops {
namespace {

using choose::Exchange;
using choose::Parts;

__global__ void __launch_bounds__(choose::kThreads, choose::kBlocksPerSm)
    choose_largest(const __grid_constant__ ChooseArgs a, Parts parts, Exchange* exchange) {
  __shared__ choose::LargestShared shared;
  choose::largest_block<true>(a, parts, exchange, shared);
}
__global__ void __launch_bounds__(choose::kThreads, choose::kBlocksPerSm)
    choose_compare(const __grid_constant__ ChooseArgs a, Parts parts, Exchange* exchange) {
  __shared__ choose::LargestShared shared;
  choose::largest_block<false>(a, parts, exchange, shared);
}
__global__ void __launch_bounds__(choose::kThreads, choose::kBlocksPerSm)
    choose_weigh(const __grid_constant__ ChooseArgs a, Parts parts, Exchange* exchange) {
  __shared__ choose::WeighShared shared;
  choose::weigh_block(a, parts, exchange, shared);
}
__global__ void __launch_bounds__(choose::kThreads, choose::kBlocksPerSm)
    choose_draw(const __grid_constant__ ChooseArgs a, Parts parts, Exchange* exchange) {
  __shared__ choose::DrawShared shared;
  choose::draw_block(a, parts, exchange, shared);
}

}  // namespace

size_t choose_workspace(const ChooseArgs& a, const DeviceInfo&) {
  return static_cast<size_t>(a.logits.size[0]) * sizeof(Exchange);
}

void choose_sm80(const ChooseArgs& a, const Launch& l) {
  const int64_t rows = a.logits.size[0];
  const Parts parts = choose::parts_of(a.logits.size[1], rows, l.device.sm_count);
  const dim3 grid(static_cast<unsigned>(parts.count), static_cast<unsigned>(rows));
  const device::LaunchShape shape{grid, choose::kThreads, 0, l.device.compute_capability >= 90};
  auto* exchange = static_cast<Exchange*>(l.workspace);
  if (!a.sampling.data) return device::launch("choose", choose_largest, shape, l.stream, a, parts, exchange);
  device::launch("choose", choose_compare, shape, l.stream, a, parts, exchange);
  device::launch("choose", choose_weigh, shape, l.stream, a, parts, exchange);
  device::launch("choose", choose_draw, shape, l.stream, a, parts, exchange);
}

}  // namespace fathom::ops
