#include <algorithm>

#include "ops/device/launch.cuh"
#include "ops/fp4_order.h"
#include "ops/op.h"

namespace fathom::ops {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) order_words(uint4* words, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const uint4 v = words[i];
    words[i] = {order_fp4(v.x), order_fp4(v.y), order_fp4(v.z), order_fp4(v.w)};
  }
}

}  // namespace

void order_codes_cuda(std::byte* codes, int64_t bytes, const Launch& l) {
  const int64_t count = bytes / 16, wanted = (count + kThreads - 1) / kThreads;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(wanted, int64_t{l.device.sm_count} * 16));
  device::launch("order", order_words, {dim3(blocks), kThreads}, l.stream, reinterpret_cast<uint4*>(codes), count);
}

}  // namespace fathom::ops
