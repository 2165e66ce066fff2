// How the units of K are divided into 2^log2_slices slices: the same for all product kernels, so that they can add in
// the same order.
#pragma once

#include "base/small_floats.h"

namespace fathom::ops {

/// Slice `slice` begins here.
FATHOM_HOST_DEVICE constexpr int first_unit(int units, int log2_slices, int slice) {
  return units * slice >> log2_slices;
}
FATHOM_HOST_DEVICE constexpr int longest_slice(int units, int log2_slices) {
  return (units + (1 << log2_slices) - 1) >> log2_slices;
}

}  // namespace fathom::ops
