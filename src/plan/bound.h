// What one decode step costs at least on some GPUs: bytes over bandwidth, operations over the matrix rate, and the
// all-reduces in between. Launches, synchronisation and imperfect kernels are not in it: a bound, no forecast.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/gpu.h"
#include "plan/model.h"

namespace fathom::plan {

/// How the routed experts are divided over the devices; attention is split by heads either way (spec 2.10).
enum class Split {
  tensor,   // a part of every expert on each device
  experts,  // whole experts by contiguous ranges of ids, as the official converter does
};

/// Share of the tokens that each expert gets, for experts drawn other than uniformly. Sums to 1; one for each expert.
using Routing = std::vector<double>;

struct Devices {
  Gpu gpu;
  int count = 1;  // devices
  Split split = Split::experts;
  double index_row = 132;  // bytes of an index key: 132 FP8, 68 FP4
  double reserve = 0;      // bytes of each device that weights and cache cannot use
  bool with_draft = false;
  Routing routing;  // empty: uniform
};

/// Expected number of different experts that `tokens` tokens meet in a layer. Uniform: E (1 - (1 - k/E)^T).
double distinct_experts(const Model& m, double tokens, const Routing& routing);

/// Expected number of the `distinct` experts on the device that has most of them, for `experts` in `devices` ranges.
double most_loaded(double distinct, int experts, int devices);

struct StepBound {
  double tokens = 0;    // in the step: batch x tokens of a request
  double distinct = 0;  // experts a layer
  double fixed_bytes = 0, expert_bytes = 0, cache_bytes = 0, draft_bytes = 0;  // each read once, all devices together
  double device_bytes = 0;                                                     // of the device that reads most
  double device_expert_bytes = 0;                                              // its part of expert_bytes
  double product_flops = 0, attention_flops = 0;                               // all devices together
  double memory_time = 0, matrix_time = 0, link_time = 0;                      // seconds
  double tokens_out = 0;                                                       // accepted tokens of the step

  double bytes() const { return fixed_bytes + expert_bytes + cache_bytes + draft_bytes; }
  double time() const { return (memory_time > matrix_time ? memory_time : matrix_time) + link_time; }
  double tokens_per_second() const { return tokens_out / time(); }
  /// "bytes", "matrix rate" or "all-reduce": what most of the time is.
  const char* binds() const;
};

/// One decode step of `batch` requests at `context` tokens. `accepted` > 0: a verification of 1 + block tokens a
/// request with the draft before it, of which that many tokens come out for each request.
StepBound bound(const Model& m, const Devices& s, double batch, double context, double accepted = 0);

/// All-reduces of a step: two a layer (attention output, experts), fp32.
double all_reduce_time(const Model& m, const Devices& s, double tokens);

struct Capacity {
  double weights = 0;    // bytes on each device, draft included when wanted
  double cache = 0;      // bytes left for the cache on each device; negative: does not fit
  double longest = 0;    // tokens of one sequence alone
  double sequences = 0;  // whole sequences of the context asked for
  double sequence_bytes = 0;
  bool fits() const { return cache >= 0 && sequences >= 1; }
};

/// What fits. The cache is on every device whole: its one KV head cannot be split.
Capacity capacity(const Model& m, const Devices& s, double context);

/// Throws Error when the model cannot be divided over that many devices.
void check_count(const Model& m, int count);

}  // namespace fathom::plan
