#include <algorithm>

#include "ops/device/launch.cuh"
#include "ops/fp4_order.h"
#include "ops/op.h"
#include "ops/weights.h"

namespace fathom::ops {
namespace {

constexpr int kThreads = 256;

template <uint32_t (*kOrder)(uint32_t)>
__global__ void __launch_bounds__(kThreads) order_words(uint4* words, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const uint4 v = words[i];
    words[i] = {kOrder(v.x), kOrder(v.y), kOrder(v.z), kOrder(v.w)};
  }
}

}  // namespace

void order_codes_cuda(std::byte* codes, int64_t bytes, CodeOrder order, const Launch& l) {
  const int64_t count = bytes / 16, wanted = (count + kThreads - 1) / kThreads;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(wanted, int64_t{l.device.sm_count} * 16));
  const auto kernel = order == CodeOrder::bytes ? order_words<order_fp4_bytes> : order_words<order_fp4>;
  device::launch("order", kernel, {dim3(blocks), kThreads}, l.stream, reinterpret_cast<uint4*>(codes), count);
}

}  // namespace fathom::ops
