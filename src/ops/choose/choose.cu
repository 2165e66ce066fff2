#include "ops/choose/choose_kernel.cuh"
#include "ops/device/launch.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(choose::kThreads)
    choose_tokens(const __grid_constant__ ChooseArgs a, choose::Exchange* exchange) {
  __shared__ choose::DrawShared shared;
  choose::choose_block(a, exchange, shared);
}

}  // namespace

size_t choose_workspace(const ChooseArgs& a, const DeviceInfo&) {
  return static_cast<size_t>(a.logits.size[0]) * sizeof(choose::Exchange);
}

void choose_sm80(const ChooseArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.logits.size[1], choose::kPartLogits), static_cast<unsigned>(a.logits.size[0]));
  auto* exchange = static_cast<choose::Exchange*>(l.workspace);
  device::launch("choose", choose_tokens, {grid, choose::kThreads, 0, l.device.compute_capability >= 90}, l.stream, a,
                 exchange);
}

}  // namespace fathom::ops
