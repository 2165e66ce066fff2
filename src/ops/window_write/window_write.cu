#include "ops/device/launch.cuh"
#include "ops/window_write/window_write_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32) window_rows(const __grid_constant__ WindowWriteArgs a) {
  window_write::write_block(a, static_cast<int>(blockIdx.x));
}

}  // namespace

void window_write_sm80(const WindowWriteArgs& a, const Launch& l) {
  const dim3 grid(static_cast<unsigned>(a.kv.size[0]));
  device::launch("window_write", window_rows, {grid, 32, 0, l.device.compute_capability >= 90, true}, l.stream, a);
}

}  // namespace fathom::ops
