// Times a variant on a case, and says how far it is from what the machine allows.
//
// Cold: the variant runs over many copies of the case at different addresses, together several times the last-level
// cache, so that no input is in the cache when it is read. Warm: over one copy, again and again. On a GPU the launches
// are captured in one CUDA graph and replayed; the time of a replay over its launches is one sample. Reported are the
// median of the samples and their spread.
#pragma once

#include <string>

#include "lab/check.h"

namespace fathom::lab {

/// The ceilings of one backend, measured on this machine.
struct Ceilings {
  double copy = 0;                     // bytes read plus written a second
  double fp32 = 0, bf16 = 0, fp8 = 0;  // FLOP/s; 0: no such instruction, the next wider unit is used
  std::string note;                    // which instruction each rate was measured with

  double rate(Unit unit) const;
};
/// Measured on the first call for each backend, then remembered.
const Ceilings& ceilings(ops::Backend backend);

/// Seconds below which no variant can get: the larger of bytes / bandwidth and operations / rate.
double floor_seconds(const Cost& cost, const Ceilings& ceilings);

enum class Heat { cold, warm };

struct Timing {
  double seconds = 0;  // median of one call
  double fastest = 0;
  double spread = 0;   // (90th percentile - 10th percentile) / median
  int64_t copies = 0;  // of the case
  int64_t samples = 0;
  bool beyond_cache = true;  // cold: the copies exceed three times the last-level cache
};

/// What limits the work of time_case().
struct Budget {
  double seconds = 0.5;               // of measuring, about
  int64_t memory = int64_t{2} << 30;  // bytes of all copies; on a GPU at least a quarter of what is free
};

/// Times `variant`. After the timed runs the outputs of the first and of the last copy are demanded to be bitwise equal
/// to each other; `judged`, when not null, receives the contents of the first for judge(). Throws Error when they
/// differ.
Timing time_case(const Case& c, const Implementation& variant, const Target& target, Heat heat, const Budget& budget,
                 Contents* judged);

}  // namespace fathom::lab
