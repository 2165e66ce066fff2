#include "ops/choose/choose_kernel.cuh"
#include "ops/device/launch.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(choose::kThreads) choose_tokens(const __grid_constant__ ChooseArgs a) {
  __shared__ choose::Best shared[choose::kWarps];
  choose::choose_block(a, shared);
}

}  // namespace

void choose_sm80(const ChooseArgs& a, const Launch& l) {
  device::launch(
      "choose", choose_tokens,
      {dim3(static_cast<unsigned>(a.logits.size[0])), choose::kThreads, 0, l.device.compute_capability >= 90}, l.stream,
      a);
}

}  // namespace fathom::ops
