// How fast the GPUs of this machine talk to each other.
#pragma once

#include <string>
#include <vector>

namespace fathom::dist {

struct Measurement {
  std::string what;
  double value = 0;
  std::string unit;
};

/// Sums of 1, 16 and 64 rows of 4096 numbers in a recorded graph, over peer memory and over NCCL, and copies from the
/// first GPU to the second. Empty on a machine with fewer than two GPUs, or in a build without CUDA. What cannot be
/// measured has the reason in `what` and no unit. Takes about two seconds and 100 MB of each GPU.
std::vector<Measurement> measure_links();

}  // namespace fathom::dist
