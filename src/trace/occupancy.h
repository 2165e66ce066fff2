// How full a launch makes the GPU, recomputed from grid, block, registers, shared memory and the SM's limits. The
// occupancy that Kineto writes is 0 for every kernel with more than 48 KiB of shared memory and is never used.
#pragma once

#include <string_view>

#include "trace/model.h"

namespace fathom::trace {

/// Limits of one SM, from the file where it has them, else from the compute capability (CUDA C++ Programming Guide,
/// table of technical specifications). known is false for other devices.
struct SmLimits {
  bool known = false;
  int sms = 0;
  int warps = 0, blocks = 0, registers = 0, warp_size = 32;
  int64_t shared = 0, shared_reserved = 0;  // bytes; the system takes `shared_reserved` of every block's
};
SmLimits sm_limits(const Device& device);

struct Occupancy {
  bool known = false;
  int blocks_per_sm = 0;   // that fit at once
  double blocks_a_sm = 0;  // that the grid has for each SM
  double filled_sms = 0;   // share of SMs that get a block, at most 1
  double warps = 0;        // resident warps over the GPU's capacity, 0..1
  const char* limit = "";  // what bounds blocks_per_sm: "registers", "shared memory", "warps", "blocks"
};
/// known is false where grid or limits are not recorded.
Occupancy occupancy(const LaunchShape& shape, const SmLimits& limits);

/// True when the launch leaves most of the GPU without work although nothing in its resources asks for it: under
/// three quarters of the SMs have a block. Grids of about one block for each SM are persistent kernels and full.
bool has_too_few_blocks(const Occupancy& o);

}  // namespace fathom::trace
