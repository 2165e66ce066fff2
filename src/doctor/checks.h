// What is wrong with a machine, and what to do about it: rules over what nvml.h and machine.h read. One line each for
// what was found, its cause and its remedy.
#pragma once

#include <string>
#include <vector>

#include "doctor/machine.h"
#include "doctor/nvml.h"
#include "doctor/rates.h"
#include "plan/gpu.h"

namespace fathom::doctor {

enum class Level {
  ok,       // as it should be
  note,     // worth knowing; nothing to do on its own
  warning,  // costs speed or capacity
  bad,      // does not work, or results cannot be trusted
};
const char* level_name(Level level);

struct Check {
  std::string area;  // "machine", "GPU 0", "GPUs", "engine", "server"
  Level level = Level::ok;
  std::string found;   // what is the case, with the numbers
  std::string cause;   // why; empty when ok
  std::string remedy;  // what to do; empty when ok
};

std::vector<Check> machine_checks(const Machine& machine);
/// Why there is no GPU to be used, or what NVML says of those there are.
std::vector<Check> gpu_checks(const NvmlReport& nvml, const Machine& machine);
/// Measured rates against the data sheet of `table`'s entry with the GPU's name.
std::vector<Check> rate_checks(const Rates& rates, const plan::GpuTable& table);

/// Samples of one GPU while it worked, and what they mean. The rule of "busy with low power": a kernel was running at
/// least 80 % of the time, the mean power was at most 55 % of the limit, and the clocks were not held back. Such a GPU
/// waits: for latency, for memory in small pieces, for few blocks without tensor cores. Full utilisation alone says
/// only that some kernel was there.
struct WorkSamples {
  std::string name;
  int index = 0;
  size_t samples = 0;
  double busy = 0, memory_busy = 0;  // mean, 0..1
  double power = 0, limit = 0;       // W, mean; 0: not told
  double clock = 0, clock_max = 0;   // MHz, mean; 0: not told
  double hottest = 0;                // degrees C
  uint64_t reasons = 0;              // all bits that were seen
};
std::vector<Check> work_checks(const WorkSamples& s);

}  // namespace fathom::doctor
