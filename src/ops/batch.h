// How a step's tokens belong to sequences.
#pragma once

#include <cstdint>

namespace fathom::ops {

/// A run of consecutive tokens of one sequence inside the batch of a step. Segments are disjoint and in batch order.
struct Segment {
  int32_t first;     // index of its first token in the batch
  int32_t count;     // tokens; 0: no sequence, only fills up a batch of fixed size
  int32_t position;  // position of the first token in its sequence
  int32_t state;     // slot of the sequence's compressor state
};

}  // namespace fathom::ops
