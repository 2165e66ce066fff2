#include "lab/gpu.h"

#ifdef FATHOM_HAVE_CUDA

#include <algorithm>
#include <vector>

#include "lab/rate_kernels.h"

namespace fathom::lab::gpu {

namespace {

/// Seconds of one launch: the median of seven graph replays of three launches each.
double seconds(const std::function<void(void* stream)>& launch) {
  Graph graph([&](void* stream) {
    for (int i = 0; i < 3; ++i) launch(stream);
  });
  std::vector<double> times;
  for (int i = 0; i < 8; ++i) times.push_back(graph.replay() * 1e-3 / 3);
  std::sort(times.begin() + 1, times.end());  // the first replay warms up
  return times[4];
}

double rate(RateKernel kernel, float* out, int sms) {
  double flops = 0;
  const double time = seconds([&](void* stream) { flops = launch_rate(kernel, out, sms, stream); });
  return flops / time;
}

}  // namespace

Rates measure_rates() {
  const Device device = current();
  const int sms = device.info.sm_count;
  Rates rates;
  {
    const size_t bytes = std::min<size_t>(size_t{1} << 30, free_memory() / 8) / 4096 * 4096;
    const Memory from(bytes), to(bytes);
    fill(from.data(), 0x5A, bytes);
    const double time = seconds(
        [&](void* stream) { launch_copy(from.data(), to.data(), static_cast<int64_t>(bytes / 16), sms, stream); });
    // The driver's own copy is sometimes better tuned: the ceiling is the faster of the two.
    const double driver = seconds([&](void* stream) { copy_on(stream, to.data(), from.data(), bytes); });
    rates.copy = 2.0 * static_cast<double>(bytes) / std::min(time, driver);
  }
  const Memory scratch(4096);
  auto* out = reinterpret_cast<float*>(scratch.data());
  rates.fp32 = rate(RateKernel::fp32_fma, out, sms);
  rates.bf16_mma = rate(RateKernel::bf16_mma, out, sms);
  if (device.info.compute_capability >= 89) rates.fp8_mma = rate(RateKernel::fp8_mma, out, sms);
  if (device.info.compute_capability == 90) rates.bf16_wgmma = rate(RateKernel::bf16_wgmma, out, sms);
  synchronize("measuring the rates of the device");
  return rates;
}

}  // namespace fathom::lab::gpu

#endif
