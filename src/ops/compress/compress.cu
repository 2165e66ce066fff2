#include "ops/compress/compress_kernel.cuh"
#include "ops/device/launch.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(compress::kThreads) compress_fused(const __grid_constant__ CompressArgs a) {
  __shared__ float row[kHeadDim];
  compress::fused_block(a, blockIdx.x, row);
}
__global__ void __launch_bounds__(compress::kThreads)
    compress_pool(const __grid_constant__ CompressArgs a, float* pooled) {
  __shared__ float shared[compress::kPooledFloats];
  compress::pool_block(a, pooled, shared);
}
__global__ void __launch_bounds__(compress::kThreads)
    compress_finish(const __grid_constant__ CompressArgs a, const float* pooled) {
  compress::finish_block(a, pooled);
}

}  // namespace

bool compress_fits_one_launch(const CompressArgs& a);

void compress_sm80(const CompressArgs& a, const Launch& l) {
  using namespace compress;
  const bool early = l.device.compute_capability >= 90;
  const int64_t entries = a.entries.size[0], segments = a.segments.size[0];
  if (compress_fits_one_launch(a))
    return device::launch("compress", compress_fused,
                          {dim3(static_cast<unsigned>(entries + segments)), kThreads, 0, early, true}, l.stream, a);
  auto* pooled = static_cast<float*>(l.workspace);
  const dim3 pools(static_cast<unsigned>(a.norm.size[0] / kPoolChannels), static_cast<unsigned>(entries));
  device::launch("compress", compress_pool, {pools, kThreads, 0, early, true}, l.stream, a, pooled);
  const dim3 rest(device::blocks_for(entries, kWarps) + static_cast<unsigned>(segments * kStateStripes));
  device::launch("compress", compress_finish, {rest, kThreads, 0, early, true}, l.stream, a,
                 static_cast<const float*>(pooled));
}

}  // namespace fathom::ops
