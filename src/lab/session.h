// A run of the kernel lab: which operations, variants, shapes; checks first, then timings. `fathom kernels` prints what
// this gives.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/timing.h"

namespace fathom::lab {

struct Options {
  std::vector<std::string> ops;       // empty: all
  std::vector<std::string> variants;  // empty: all; "ref" is timed only when named
  std::vector<std::string> shapes;    // empty: all
  std::vector<int64_t> batches;       // empty: 1, 8 and 64 on a GPU, 1 on the CPU
  uint64_t seed = 1;
  int64_t cases = 24;    // random cases for each op
  double seconds = 0.3;  // of measuring, for each line
  Guards guards = Guards::zones;
  std::string as;  // plan as this GPU (see known_gpus()); empty: the real one
};

/// GPUs whose multiprocessor count and shared memory a plan can be made for on another GPU.
struct KnownGpu {
  std::string_view name;
  int compute_capability, sm_count;
  int64_t shared_bytes, l2_bytes;
};
const std::vector<KnownGpu>& known_gpus();

struct CheckRow {
  std::string op, variant;
  int64_t passed = 0, failed = 0, unsupported = 0;
  double relative_l2 = 0, truth_l2 = -1, worst_ulp = 0;
  std::vector<std::string> failures;  // "seed 7, T=3 ...: out: ..." for the first three
};

struct TimingRow {
  std::string op, variant, shape;
  int64_t batch = 1;
  std::string sizes;  // the case's own words
  Heat heat = Heat::cold;
  Timing timing;
  Cost cost;
  double floor = 0;     // seconds
  std::string judged;   // "reference", or "copies agree" where the reference would take too long
  std::string failure;  // not empty: wrong results, no timing
};

/// Throws Error when an op, variant, shape or GPU is not known, when a GPU variant was named and there is no GPU, or
/// when nothing remains. Variants that need a GPU are left out when they were not named.
class Session {
 public:
  explicit Session(Options options);

  /// Checks every chosen variant; `done` is called with each finished line.
  void check(const std::function<void(const CheckRow&)>& done);
  void time(const std::function<void(const TimingRow&)>& done);

  bool has_gpu() const { return has_gpu_; }
  /// What the GPU is planned as; only with a GPU.
  const ops::DeviceInfo& gpu() const { return gpu_.device; }

 private:
  std::vector<std::string> chosen(const OpCases& op) const;
  const Target& target(const Implementation& variant) const;
  /// On the device, and on the GPU that is planned for.
  bool can_run(const Case& c, const Implementation& variant) const;
  void time_shape(const OpCases& op, std::string_view shape, int64_t batch, const std::vector<std::string>& names,
                  const std::function<void(const TimingRow&)>& done);

  Options options_;
  std::vector<const OpCases*> ops_;
  Target cpu_, gpu_;
  ops::DeviceInfo pretended_;  // the GPU of Options::as
  bool has_gpu_ = false;
};

}  // namespace fathom::lab
