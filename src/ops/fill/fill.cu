#include <algorithm>

#include "ops/device/launch.cuh"
#include "ops/fill/fill_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(fill_words::kThreads) fill_memory(const __grid_constant__ FillArgs a) {
  fill_words::fill_block(a);
}

}  // namespace

void fill_sm80(const FillArgs& a, const Launch& l) {
  if (a.bytes == 0) return;
  const int64_t wanted = (a.bytes / 8 + fill_words::kThreads) / fill_words::kThreads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(wanted, int64_t{l.device.sm_count} * 16));
  device::launch("fill", fill_memory, {dim3(blocks), fill_words::kThreads}, l.stream, a);
}

}  // namespace fathom::ops
