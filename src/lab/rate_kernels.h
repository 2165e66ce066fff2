// Launchers of the small kernels that measure a GPU: see gpu_rates.cpp.
#pragma once

#include <cstdint>

namespace fathom::lab::gpu {

/// Copies n 16-byte words.
void launch_copy(const void* from, void* to, int64_t n, int sms, void* stream);

enum class RateKernel { fp32_fma, bf16_mma, fp8_mma, bf16_wgmma };
/// One block on every multiprocessor; `out` is 4 KiB of device memory. Returns the floating-point operations launched.
double launch_rate(RateKernel kernel, float* out, int sms, void* stream);

}  // namespace fathom::lab::gpu
