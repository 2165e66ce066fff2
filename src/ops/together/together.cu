#include "ops/device/launch.cuh"
#include "ops/together/together_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(together::kInputThreads)
    attention_inputs(const __grid_constant__ AttentionInputsArgs a) {
  together::inputs_block(a);
}
__global__ void __launch_bounds__(compress::kThreads) compress_both(const __grid_constant__ CompressBothArgs a) {
  __shared__ float row[kHeadDim];
  together::compress_block(a, row);
}

}  // namespace

void attention_inputs_sm80(const AttentionInputsArgs& a, const Launch& l) {
  const dim3 grid(static_cast<unsigned>(together::input_blocks(a)), static_cast<unsigned>(a.query.q.size[0]));
  device::launch("attention_inputs", attention_inputs,
                 {grid, together::kInputThreads, 0, l.device.compute_capability >= 90, true}, l.stream, a);
}

void compress_both_sm80(const CompressBothArgs& a, const Launch& l) {
  const auto blocks = static_cast<unsigned>(2 * (a.main.entries.size[0] + a.main.segments.size[0]));
  device::launch("compress", compress_both,
                 {dim3(blocks), compress::kThreads, 0, l.device.compute_capability >= 90, true}, l.stream, a);
}

}  // namespace fathom::ops
