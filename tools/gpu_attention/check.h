// The two halves of fathom_gpu_attention.
#pragma once

#include <string>

#include "ops/op.h"

namespace fathom::gpu {

/// Compares every kernel instance with float64 on random ragged shapes; returns the number of failures. `small` keeps
/// the shapes small enough for compute-sanitizer.
int check_attention(const ops::DeviceInfo& device, bool small, unsigned seed);

/// Times plans with cold inputs under graph replay and prints tables. `all_plans` tries a grid of plans for each shape.
void bench_attention(const ops::DeviceInfo& device, bool all_plans, const std::string& only);

/// Runs one plan of one shape a few times, for a profiler; kind 0 portable, 1 warpgroup kernel, 2 that
/// for few rows.
void profile_attention(const ops::DeviceInfo& device, int tokens, int extra, int block_heads, int splits, int kind);

}  // namespace fathom::gpu
