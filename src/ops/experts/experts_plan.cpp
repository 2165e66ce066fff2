#include "ops/cpu/project.h"
#include "ops/experts/experts_cpu.h"

namespace fathom::ops::cpu {
namespace {

struct Sizes {
  int64_t tokens, slots, d, hidden, blocks, tasks;
  bool shared;
};

Sizes sizes_of(const ExpertsArgs& a) {
  Sizes s{};
  s.tokens = a.x.size[0], s.d = a.x.size[1];
  s.shared = a.shared_w1.codes.data != nullptr;
  s.slots = s.tokens * a.expert.size[1];
  s.hidden = std::max(a.w1.rows, s.shared ? a.shared_w1.codes.size[0] : int64_t{0});
  // Every expert ends with a block that is not full.
  s.blocks = s.slots / kExpertTokens + std::min<int64_t>(a.experts, s.slots);
  if (s.shared) s.blocks += s.tokens / kExpertTokens + 1;
  s.tasks = s.blocks * ((s.hidden + kExpertRows - 1) / kExpertRows + (s.d + kExpertRows - 1) / kExpertRows);
  return s;
}

size_t carve(const Sizes& s, int64_t experts, void* workspace, ExpertPlan& plan) {
  Carver memory(workspace);
  const int64_t slots = s.slots + (s.shared ? s.tokens : 0), pitch = round_up(s.d, 32);
  plan.hidden_pitch = round_up(s.hidden, 32);
  plan.shared_first = s.slots;
  plan.sorted = memory.take<int32_t>(s.slots);
  plan.start = memory.take<int32_t>(experts + 1);
  plan.tasks = memory.take<ExpertTask>(s.tasks);
  plan.x_pairs = memory.take<float>(s.tokens * pitch);
  plan.x_nibbles = memory.take<float>(s.tokens * pitch);
  plan.hidden = memory.take<float>(slots * plan.hidden_pitch);
  plan.part = memory.take<bf16>(slots * s.d);
  return memory.used();
}

void sort_tokens(const ExpertsArgs& a, ExpertPlan& plan) {
  const int64_t k = a.expert.size[1], tokens = a.x.size[0];
  std::fill_n(plan.start, a.experts + 1, 0);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < k; ++i)
      if (const int32_t e = local_expert(a, a.expert(t, i)); e >= 0) ++plan.start[e + 1];
  for (int32_t e = 0; e < a.experts; ++e) plan.start[e + 1] += plan.start[e];
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < k; ++i)
      if (const int32_t e = local_expert(a, a.expert(t, i)); e >= 0)
        plan.sorted[plan.start[e]++] = static_cast<int32_t>(t * k + i);
  for (int32_t e = a.experts; e > 0; --e) plan.start[e] = plan.start[e - 1];
  plan.start[0] = 0;
}

/// Appends the tasks of tokens [begin, end) of an expert times `rows` weight rows of `columns` columns.
void add_tasks(ExpertPlan& plan, int64_t& at, int32_t expert, int32_t begin, int32_t end, int64_t rows, int64_t columns,
               double& cost) {
  for (int32_t first = begin; first < end; first += kExpertTokens) {
    const int32_t count = std::min<int32_t>(end - first, kExpertTokens);
    for (int64_t n = 0; n < rows; n += kExpertRows)
      plan.tasks[at++] = {expert, first, count, static_cast<int32_t>(n),
                          static_cast<int32_t>(std::min(n + kExpertRows, rows))};
    cost += static_cast<double>(rows * columns) * (count + kDecodeCost);
  }
}

}  // namespace

size_t experts_workspace(const ExpertsArgs& a) {
  ExpertPlan plan;
  return carve(sizes_of(a), a.experts, nullptr, plan);
}

ExpertPlan plan_experts(const ExpertsArgs& a, void* workspace) {
  ExpertPlan plan;
  const Sizes s = sizes_of(a);
  carve(s, a.experts, workspace, plan);
  sort_tokens(a, plan);
  const auto tokens = static_cast<int32_t>(s.tokens);
  int64_t at = 0;
  if (s.shared) add_tasks(plan, at, -1, 0, tokens, a.shared_w1.codes.size[0], 2 * s.d, plan.up_cost);
  for (int32_t e = 0; e < a.experts; ++e)
    add_tasks(plan, at, e, plan.start[e], plan.start[e + 1], a.w1.rows, 2 * s.d, plan.up_cost);
  plan.up_tasks = at;
  if (s.shared) add_tasks(plan, at, -1, 0, tokens, s.d, a.shared_w1.codes.size[0], plan.down_cost);
  for (int32_t e = 0; e < a.experts; ++e)
    add_tasks(plan, at, e, plan.start[e], plan.start[e + 1], s.d, a.w1.rows, plan.down_cost);
  plan.down_tasks = at - plan.up_tasks;
  return plan;
}

}  // namespace fathom::ops::cpu
