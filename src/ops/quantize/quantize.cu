// The CUDA variants of act_quant. Rows of x, codes and the norm must begin at multiples of 16 bytes (codes: 8).
//
//   sm80   any GPU since the A100
//   sm90   the same, starting while the previous kernel of the stream ends
#include "ops/device/launch.cuh"
#include "ops/quantize/quantize_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(quantizing::kMostThreads)
    quantize_rows(const __grid_constant__ quantizing::Params p) {
  __shared__ __align__(16) std::byte shared[quantizing::kMostThreads / 32 * sizeof(device::Sum)];
  quantizing::quantize_block(p, shared);
}

void run(const QuantizeArgs& a, const Launch& l, bool early) {
  const quantizing::Params p = quantizing::pack(a);
  if (p.k == 0) return;
  device::launch("quantize", quantize_rows, {dim3(static_cast<unsigned>(a.x.size[0])), p.threads, 0, early, true},
                 l.stream, p);
}

}  // namespace

bool quantize_sm80_can_run(const QuantizeArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.x.size[1] % 128 == 0 &&
         a.x.size[1] < int64_t{1} << 24 && a.x.size[0] < int64_t{1} << 30 && a.x.stride[0] % 8 == 0 &&
         a.codes.stride[0] % 8 == 0;
}
bool quantize_sm90_can_run(const QuantizeArgs& a, const DeviceInfo& d) {
  return d.compute_capability >= 90 && quantize_sm80_can_run(a, d);
}
void quantize_sm80(const QuantizeArgs& a, const Launch& l) {
  run(a, l, false);
}
void quantize_sm90(const QuantizeArgs& a, const Launch& l) {
  run(a, l, true);
}

}  // namespace fathom::ops
