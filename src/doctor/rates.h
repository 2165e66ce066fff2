// What this machine can do, measured: copies, matrix rates, reading the folder of a model. What is not measured says
// why.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dist/measure.h"

namespace fathom::doctor {

struct Rates {
  double cpu_copy = 0, cpu_fp32 = 0;  // bytes a second (read plus written), FLOP/s; 0: see cpu_why_not
  std::string cpu_why_not;
  std::string gpu;  // name of the measured one
  double gpu_copy = 0, gpu_fp32 = 0, gpu_bf16 = 0, gpu_fp8 = 0;
  std::string gpu_why_not;
  std::vector<dist::Measurement> links;  // between GPUs; empty: see all_reduce_why_not
  std::string all_reduce_why_not;
};

/// Takes about two seconds, and 1 GiB of memory for as long. The GPU is the current device of the CUDA runtime.
/// `gpus`: how many there are. Between several, sums and copies are measured.
Rates measure_rates(size_t gpus);

struct DiskRate {
  std::string file;
  double bytes = 0, seconds = 0;
  bool direct = false;  // past the page cache
  std::string why_not;
  double rate() const { return seconds > 0 ? bytes / seconds : 0; }
};

/// Reads at most `limit` bytes of the largest file of weights in `folder`.
DiskRate measure_disk(const std::filesystem::path& folder, size_t limit = size_t{256} << 20);

}  // namespace fathom::doctor
