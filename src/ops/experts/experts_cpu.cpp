// Experts on the CPU: tokens grouped by expert, two rounds of products over blocks of tokens and of 128 weight rows,
// then the sum of each token. Weights are decoded once for all tokens of a block.
#include "ops/experts/experts_cpu.h"
#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"

namespace fathom::ops {

void experts_ref(const ExpertsArgs& a, const Launch&);

namespace {
using cpu::ExpertPlan;
using cpu::ExpertTask;
using cpu::kExpertRows;
using cpu::kExpertTokens;
using cpu::Matrix;

constexpr int64_t kMostParts = 64;

struct ProductScratch;

struct Weights {
  Matrix w1, w3, w2;
};

Weights weights_of(const ExpertsArgs& a, int32_t expert) {
  if (expert < 0) return {cpu::matrix(a.shared_w1), cpu::matrix(a.shared_w3), cpu::matrix(a.shared_w2)};
  return {cpu::matrix(a.w1, expert), cpu::matrix(a.w3, expert), cpu::matrix(a.w2, expert)};
}

bool wants_nibbles(const Matrix& m) {
  return m.codec == cpu::Codec::mxfp4 || m.codec == cpu::Codec::nvfp4;
}

/// Rows [n0, n1) of w1 and w3 for the tokens of a task, down to the fp32 input of w2.
void run_up(const ExpertsArgs& a, const ExpertPlan& plan, const ExpertTask& task) {
  const Weights w = weights_of(a, task.expert);
  const float* rows[kExpertTokens];
  const float* x = wants_nibbles(w.w1) ? plan.x_nibbles : plan.x_pairs;
  const int64_t k = a.expert.size[1], pitch = cpu::x_pitch(a.x.size[1]), m = task.count;
  for (int64_t r = 0; r < m; ++r) rows[r] = x + plan.token(task, r, k) * pitch;
  auto* gate = reinterpret_cast<float*>(
      cpu::thread_scratch<ProductScratch>(sizeof(float) * 2 * static_cast<size_t>(m) * kExpertRows));
  float* up = gate + m * kExpertRows;
  cpu::multiply(w.w1, task.n0, task.n1, rows, m, gate, kExpertRows);
  cpu::multiply(w.w3, task.n0, task.n1, rows, m, up, kExpertRows);
  e4m3 codes[kExpertRows];
  for (int64_t r = 0; r < m; ++r) {
    const int64_t slot = plan.slot(task, r);
    const float* weight = task.expert < 0 ? nullptr : &a.weight(slot / k, slot % k);
    cpu::swiglu(gate + r * kExpertRows, up + r * kExpertRows, kExpertRows, a.limit, weight);
    e8m0 scale;
    cpu::act_quant(gate + r * kExpertRows, task.n1 - task.n0, codes, &scale);
    cpu::prepare_fp8(w.w2.codec, codes, &scale, task.n1 - task.n0, plan.hidden + slot * plan.hidden_pitch + task.n0);
  }
}

/// Rows [n0, n1) of w2 for the tokens of a task.
void run_down(const ExpertsArgs& a, const ExpertPlan& plan, const ExpertTask& task) {
  const Weights w = weights_of(a, task.expert);
  const float* rows[kExpertTokens];
  const int64_t m = task.count, d = a.x.size[1];
  for (int64_t r = 0; r < m; ++r) rows[r] = plan.hidden + plan.slot(task, r) * plan.hidden_pitch;
  auto* y = reinterpret_cast<float*>(
      cpu::thread_scratch<ProductScratch>(sizeof(float) * static_cast<size_t>(m) * kExpertRows));
  cpu::multiply(w.w2, task.n0, task.n1, rows, m, y, kExpertRows);
  for (int64_t r = 0; r < m; ++r)
    cpu::store_bf16(y + r * kExpertRows, task.n1 - task.n0, plan.part + plan.slot(task, r) * d + task.n0);
}

/// y = bf(parts of a token in the order of its experts, then the shared part).
void sum_parts(const ExpertsArgs& a, const ExpertPlan& plan, int64_t t) {
  const int64_t k = a.expert.size[1], n = a.x.size[1];
  const bf16* parts[kMostParts];
  int64_t count = 0;
  for (int64_t e = 0; e < k; ++e)
    if (cpu::local_expert(a, a.expert(t, e)) >= 0) parts[count++] = plan.part + (t * k + e) * n;
  if (a.shared_w1.codes.data) parts[count++] = plan.part + (a.x.size[0] * k + t) * n;
  if (a.sum.data) {
    float* sum = a.sum[t].data;
    std::fill_n(sum, n, 0.0f);
    for (int64_t p = 0; p < count; ++p)
      for (int64_t i = 0; i < n; ++i) sum[i] += to_float(parts[p][i]);
  } else {
    cpu::add_parts(parts, count, n, 1.0f, a.y[t].data);
  }
}

}  // namespace

void experts_cpu(const ExpertsArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return experts_ref(a, l);
  const int64_t tokens = a.x.size[0], d = a.x.size[1], pitch = cpu::x_pitch(d);
  if (tokens <= 0) return;
  const ExpertPlan plan = cpu::plan_experts(a, l.workspace);
  const double tokens_each = static_cast<double>(tokens);
  const bool nibbles = a.expert.size[1] > 0 && a.w1.format != ExpertFormat::fp8;
  const bool pairs = !nibbles || a.shared_w1.codes.data;
  cpu::split(tokens, 8, tokens_each * static_cast<double>(d) * 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (nibbles) cpu::prepare_fp8(cpu::Codec::mxfp4, a.x[t].data, a.x_scale[t].data, d, plan.x_nibbles + t * pitch);
      if (pairs) cpu::prepare_fp8(cpu::Codec::fp8, a.x[t].data, a.x_scale[t].data, d, plan.x_pairs + t * pitch);
    }
  });
  cpu::split(plan.up_tasks, 1, plan.up_cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_up(a, plan, plan.tasks[i]);
  });
  cpu::split(plan.down_tasks, 1, plan.down_cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_down(a, plan, plan.tasks[plan.up_tasks + i]);
  });
  cpu::split(tokens, 8, tokens_each * static_cast<double>(d * (a.expert.size[1] + 1)) * 4,
             [&](int64_t begin, int64_t end) {
               for (int64_t t = begin; t < end; ++t) sum_parts(a, plan, t);
             });
}

bool experts_cpu_can_run(const ExpertsArgs& a, const DeviceInfo&) {
  const auto whole = [](int64_t n) { return n % 128 == 0; };
  return !a.end.streams.data && a.w1.order == CodeOrder::checkpoint && whole(a.x.size[1]) && whole(a.w1.rows) &&
         (!a.shared_w1.codes.data || whole(a.shared_w1.codes.size[0])) && a.expert.size[1] < kMostParts;
}

size_t experts_cpu_workspace(const ExpertsArgs& a, const DeviceInfo&) {
  return cpu::experts_workspace(a);
}

}  // namespace fathom::ops
