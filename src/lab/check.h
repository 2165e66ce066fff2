// Runs a variant on a case and judges its results.
#pragma once

#include <string>
#include <vector>

#include "lab/case.h"
#include "lab/placement.h"

namespace fathom::lab {

/// Where a variant runs, and as what: `device` may describe a smaller GPU than the real one.
struct Target {
  ops::DeviceInfo device;
  Guards guards = Guards::zones;
};

Target cpu_target();
/// The real GPU. Throws Error when there is none.
Target gpu_target();

/// What the reference computes for a case, and the truths of the case.
struct Expected {
  Contents contents;
  std::vector<std::vector<double>> truths;  // in the order of Case::truths
};
/// Runs the variant "ref" on the CPU. Throws std::logic_error when the op has none.
Expected expect(const Case& c);

struct Verdict {
  bool ok = true;
  std::string message;     // when not ok
  double relative_l2 = 0;  // worst over the outputs, against the reference
  double truth_l2 = -1;    // worst over the truths; -1: the case has none
  double worst_ulp = 0;
};

/// Runs the variant twice from the same inputs (with the workspace left as the first run left it) and demands: results
/// within tolerance of the reference and of the truths, properties hold, both runs bitwise equal, every token alone
/// gives the same bits (where the case has run_token), no write outside the outputs, inputs untouched. What the variant
/// throws becomes a failed verdict, except gpu::Failure.
Verdict check(const Case& c, const Implementation& variant, const Expected& expected, const Target& target);

/// Judges contents that were computed elsewhere (by a timed run, say).
Verdict judge(const Case& c, Contents& got, const Expected& expected);

/// ||got - truth|| / ||truth|| of buffer content against double precision values.
double relative_l2(const Buffer& buffer, std::span<const std::byte> got, const std::vector<double>& truth);

}  // namespace fathom::lab
