// fathom_gpu_attention: checks and times sparse attention decode on the GPU at hand.
//
//   fathom_gpu_attention check [seed]     every instance against float64 on random ragged shapes
//   fathom_gpu_attention check-small      the same on a few small shapes, for compute-sanitizer
//   fathom_gpu_attention bench            the chosen plan of each shape
//   fathom_gpu_attention tune             a grid of plans for each shape
//   ... "B=1,B=8 x6"                      bench or tune: only shapes of these names
//   ... portable                          without the kernels that only sm_90 has
//   fathom_gpu_attention profile TOKENS EXTRA_ROWS BLOCK_HEADS SPLITS KIND   a few launches, for a profiler
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "check.h"
#include "device_case.h"

int main(int argc, char** argv) {
  using namespace fathom;
  try {
    const std::string verb = argc > 1 ? argv[1] : "";
    int capability[2], sms = 0, shared = 0, l2 = 0;
    gpu::check(cudaSetDevice(0), "cudaSetDevice");
    gpu::check(cudaDeviceGetAttribute(&capability[0], cudaDevAttrComputeCapabilityMajor, 0), "attribute");
    gpu::check(cudaDeviceGetAttribute(&capability[1], cudaDevAttrComputeCapabilityMinor, 0), "attribute");
    gpu::check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "attribute");
    gpu::check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "attribute");
    gpu::check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0), "attribute");
    const bool portable = std::string(argv[argc - 1]) == "portable";  // leave out what only sm_90 has
    const ops::DeviceInfo device{ops::Backend::cuda, portable ? 80 : capability[0] * 10 + capability[1], sms, shared,
                                 l2};
    if (verb == "check" || verb == "check-small")
      return gpu::check_attention(device, verb != "check", argc > 2 ? std::atoi(argv[2]) : 1) ? 1 : 0;
    if (verb == "bench" || verb == "tune") {
      gpu::bench_attention(device, verb == "tune", argc > 2 && argv[2] != std::string("portable") ? argv[2] : "");
      return 0;
    }
    if (verb == "profile" && argc == 7) {
      const auto number = [&](int i) { return std::atoi(argv[i]); };
      gpu::profile_attention(device, number(2), number(3), number(4), number(5), number(6));
      return 0;
    }
    std::fprintf(stderr, "usage: fathom_gpu_attention check [seed] | check-small | bench | tune | profile ...\n");
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fathom_gpu_attention: %s\n", e.what());
    return 1;
  }
}
