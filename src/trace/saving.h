// The most that is saved when some of the work vanished altogether: Amdahl's bound where streams run side by side.
//
// On one stream work follows work, so all of its time is saved. What the other streams of the device still have to do
// stays: of two streams that are busy for 100 us each, side by side, removing one saves nothing.
#pragma once

#include <span>
#include <vector>

#include "trace/model.h"
#include "trace/ranking.h"
#include "trace/summary.h"

namespace fathom::trace {

class SavingBound {
 public:
  SavingBound(const Trace& trace, const Summary& summary, const Ranking& ranking);

  /// Of the busy time of all devices (Summary::busy), what at most is saved without the work of these rows of the
  /// ranking.
  Ns without(std::span<const size_t> rows) const;

 private:
  struct Part {  // time of one row on one stream
    size_t row = 0, stream = 0;
    Ns total = 0;
  };
  const Summary& summary_;
  std::vector<Part> parts_;           // by row
  std::vector<size_t> first_of_row_;  // in parts_; one more than there are rows
  size_t streams_ = 0;
};

}  // namespace fathom::trace
