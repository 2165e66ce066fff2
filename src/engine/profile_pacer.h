// Which steps of a profile are recorded, so that all of them together take hardly longer.
//
// Records of the kernels inside a replayed step make its launch slower (CUPTI: about a microsecond for each kernel),
// and turning them on and off takes as long as several steps. So steps are recorded in runs, and a run begins when what
// has been spent and what it will cost stay below a share of the time so far. Costs are measured: recorded steps beside
// others of the same size.
#pragma once

#include <cstdint>
#include <vector>

#include "base/recorder.h"

namespace fathom {

class ProfilePacer {
 public:
  /// `share` of the steps' time may be spent on recording.
  explicit ProfilePacer(double share = 0.025) : share_(share) {}

  /// A step of `size` tokens has ended. Size 0: its time says nothing, no other step is like it. Returns whether the
  /// next one is to be recorded; the first ones are.
  bool step_ended(bool recorded, int64_t size, double seconds);
  /// Turning the records on or off took so long.
  void switched(double seconds);

  RecordingCost cost() const;

 private:
  struct Sample {
    int64_t size;
    double seconds, assumed;
  };
  double usual(int64_t size) const;
  void note_cost(double seconds);
  double cost_of(double step) const;

  double share_;
  int64_t steps_ = 0, recorded_ = 0, in_a_row_ = 0;
  int64_t size_ = 0;
  std::vector<double> others_;     // the last steps of size_ that were not recorded
  std::vector<Sample> unsettled_;  // recorded steps of which no other of the size is known
  std::vector<double> costs_;      // of the last recorded steps
  double work_ = 0;                // what the steps would have taken
  double overhead_ = 0;            // that was measured
  double assumed_ = 0;             // of recorded steps that could not be compared
  double last_switch_ = 0, both_switches_ = 0;
};

}  // namespace fathom
