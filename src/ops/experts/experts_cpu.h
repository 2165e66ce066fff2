// How the CPU variant of the experts cuts its work: tokens sorted by expert, tasks of some tokens times 128 weight
// rows.
#pragma once

#include "ops/cpu/scratch.h"
#include "ops/experts/experts.h"

namespace fathom::ops::cpu {

inline constexpr int64_t kExpertTokens = 192;  // most tokens of a task
inline constexpr int64_t kExpertRows = 128;    // weight rows of a task: one quantisation group of the hidden row

/// Some tokens of one expert times some rows of a weight. `first` counts in the list of slots sorted by expert; tokens
/// of the shared expert (expert -1) are in batch order.
struct ExpertTask {
  int32_t expert, first, count;
  int32_t n0, n1;
};

/// Everything one run needs; lies in the workspace. A slot is token * k + choice, and for the shared expert
/// tokens * k + token.
struct ExpertPlan {
  int32_t* sorted = nullptr;  // [T * k] slots by expert
  int32_t* start = nullptr;   // [E + 1] where each expert begins in `sorted`
  ExpertTask* tasks = nullptr;
  int64_t up_tasks = 0, down_tasks = 0;
  double up_cost = 0, down_cost = 0;
  float *x_pairs = nullptr, *x_nibbles = nullptr;  // [T, pitch] in the two column orders
  float* hidden = nullptr;                         // [slots, hidden_pitch]
  bf16* part = nullptr;                            // [slots, d]
  int64_t hidden_pitch = 0, shared_first = 0;

  int64_t slot(const ExpertTask& t, int64_t r) const {
    return t.expert < 0 ? shared_first + t.first + r : sorted[t.first + r];
  }
  int64_t token(const ExpertTask& t, int64_t r, int64_t k) const {
    return t.expert < 0 ? t.first + r : sorted[t.first + r] / k;
  }
};

/// Where the weights of an expert lie in w1, w2, w3; -1: not there.
inline int32_t local_expert(const ExpertsArgs& a, int32_t id) {
  const int32_t e = id - a.first_expert;
  return e >= 0 && e < a.experts ? e : -1;
}

size_t experts_workspace(const ExpertsArgs& a);

/// Sorts the tokens and lists the tasks.
ExpertPlan plan_experts(const ExpertsArgs& a, void* workspace);

}  // namespace fathom::ops::cpu
