// Correctness on the GPU: random ragged shapes, every kernel instance and way of splitting, against float64.
#include "check.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "device_case.h"
#include "ops/sparse_attention/decode_plan.h"

namespace fathom::gpu {
namespace {

using ops::SparseCase;
using ops::SparseCaseShape;
using ops::sparse_decode::Plan;

constexpr double kTolerance = 1.75e-3, kToleranceWithRope = 1.9e-3;

struct Result {
  std::string name, failure;
  double relative_l2 = 0;
};

std::string describe(const SparseCaseShape& s, const Plan& plan) {
  char text[256];
  std::snprintf(text, sizeof(text), "%s T=%d H=%d pages %d/%d rows <=%d+%d%s mask %.2f%s%s | %d heads x %d splits%s%s",
                s.format == ops::RowFormat::v4 ? "v4" : "bf16", s.tokens, s.heads, s.window_page, s.extra_page,
                s.window_most, s.extra_most, s.window_length.empty() ? "" : " ragged", s.masked,
                s.codes ? " codes" : "", s.padding ? " strided" : "", plan.block_heads, plan.splits,
                plan.wide       ? plan.burst ? " wide burst" : " wide"
                : plan.pack > 1 ? " packed"
                : plan.cluster  ? " cluster"
                : plan.burst    ? " burst"
                                : "",
                plan.mail       ? " mail"
                : plan.patience ? " wait"
                                : "");
  return text;
}

std::vector<Plan> plans_for(const SparseCaseShape& s, const ops::DeviceInfo& device, std::mt19937& random) {
  SparseCase tiny;
  ops::SparseAttentionArgs a;
  a.q.size[0] = s.tokens, a.q.size[1] = s.heads, a.q.size[2] = 512;
  a.format = s.format;
  e4m3 code;
  if (s.codes) a.out_codes = View<e4m3, 3>(&code, s.tokens, s.heads, 512);
  const int32_t some = 0;
  if (s.window_most) a.window.index = View<const int32_t, 2>(&some, s.tokens, s.window_most);
  if (s.extra_most) a.extra.index = View<const int32_t, 2>(&some, s.tokens, s.extra_most);
  std::vector<Plan> plans{ops::sparse_decode::choose_plan(a, device, false),
                          ops::sparse_decode::choose_exact_plan(a, device)};
  const bool sm90 = device.compute_capability >= 90;
  if (device.compute_capability == 90) plans.push_back(ops::sparse_decode::choose_plan(a, device, true));
  for (int sms : {48, 170, 188}) {
    ops::DeviceInfo other = device;
    other.sm_count = sms;
    plans.push_back(ops::sparse_decode::choose_plan(a, other, false));
  }
  if (device.compute_capability == 90 && s.format == ops::RowFormat::v4)
    for (int i = 0; i < 3; ++i) {
      Plan wide{64, i == 0 ? 1 : 1 + static_cast<int>(random() % 32), true};
      wide.patience = random() % 2 ? 40000 : 0;
      plans.push_back(wide);
    }
  const int tiles = (s.window_most + s.extra_most + 15) / 16;
  if (s.format == ops::RowFormat::v4) {
    for (int heads : {16, 32, 64})
      for (int most : {2, 3, 5}) {
        const int splits = (tiles + most - 1) / most + static_cast<int>(random() % 3);
        if (splits > 32 || (most == 2 && heads != 16)) continue;
        Plan burst{heads, splits, false, sm90 && random() % 2, random() % 2 ? 40000 : 0};
        burst.burst = most;
        plans.push_back(burst);
      }
    for (int most : {2, 3, 5}) {
      const int splits = (tiles + most - 1) / most + static_cast<int>(random() % 3);
      if (device.compute_capability != 90 || splits > 32) continue;
      Plan plan{64, splits, true, random() % 2 != 0, random() % 2 ? 40000 : 0};
      plan.burst = most;
      plans.push_back(plan);
    }
    for (int cluster : {8, 16}) {
      const int most = cluster == 16 ? 3 : 5;
      if (!sm90 || s.codes || tiles > most * cluster) continue;
      Plan plan{16, cluster, false, random() % 2 != 0};
      plan.burst = most, plan.cluster = cluster;
      plans.push_back(plan);
    }
  }
  for (int queries : {2, 3, 4, 6}) {
    if (s.tokens % queries || s.padding || s.format != ops::RowFormat::v4) continue;
    Plan packed{random() % 2 ? 32 : 64, 1 + static_cast<int>(random() % 9), false, sm90 && random() % 2};
    packed.pack = queries, packed.patience = random() % 2 ? 40000 : 0;
    plans.push_back(packed);
  }
  for (int heads : {16, 32, 64}) {
    if (s.format == ops::RowFormat::bf16 && heads == 64) continue;
    for (int i = 0; i < 3; ++i) {
      const int splits = 1 + static_cast<int>(random() % 32);
      plans.push_back({heads, splits, false, sm90 && i == 0, random() % 2 ? 40000 : 0});
    }
  }
  const size_t count = plans.size();
  for (size_t i = 0; i < count; ++i) {  // splits that hand over by mail, where all blocks are resident
    Plan plan = plans[i];
    const int blocks = s.tokens * ((s.heads + plan.block_heads - 1) / plan.block_heads) * plan.splits;
    if (plan.mail || !plan.burst || plan.cluster || s.codes || plan.splits == 1 || plan.splits > 16) continue;
    if (blocks > device.sm_count) continue;
    plan.mail = true, plan.patience = 1;
    plans.push_back(plan);
  }
  return plans;
}

void randomise_lengths(SparseCaseShape& s, std::mt19937& random) {
  for (int t = 0; t < s.tokens; ++t) {
    const auto pick = [&](int most) {
      const unsigned kind = random() % 6;
      if (kind == 0) return 0;
      if (kind == 1) return std::min(most, 1);
      if (kind == 2) return most;
      return static_cast<int>(random() % static_cast<unsigned>(most + 1));
    };
    s.window_length.push_back(pick(s.window_most));
    s.extra_length.push_back(pick(s.extra_most));
  }
}

std::vector<SparseCaseShape> shapes(bool small, std::mt19937& random) {
  std::vector<SparseCaseShape> all;
  const int pages[] = {2, 64, 256, 7};
  for (auto format : {ops::RowFormat::v4, ops::RowFormat::bf16})
    for (int heads : {4, 8, 16, 32, 64, 128, 24}) {
      if (small && heads != 8 && heads != 64) continue;
      for (int kind = 0; kind < (small ? 1 : 5); ++kind) {
        SparseCaseShape s;
        s.format = format, s.heads = heads, s.seed = random();
        s.window_page = pages[random() % 4], s.extra_page = pages[random() % 4];
        s.tokens = kind == 4 ? 1 : 1 + static_cast<int>(random() % 6);
        s.window_most = kind == 1 ? 0 : 128, s.extra_most = kind == 2 ? 0 : small ? 150 : 512;
        if (kind == 3) s.extra_most = 1024;
        if (kind == 4) s.extra_most = 8192, s.extra_page = 2;
        s.masked = kind % 2 ? 0.3 : 0, s.codes = random() % 2, s.padding = random() % 2, s.sink = random() % 3 != 0;
        s.rotate = random() % 2, s.query_scale = random() % 3 == 0 ? 4 : 1;
        if (kind != 4 || random() % 2) randomise_lengths(s, random);
        all.push_back(s);
      }
    }
  if (small) return all;
  for (int tokens : {1, 2, 6, 12, 64, 128}) {
    SparseCaseShape s;
    s.tokens = tokens, s.queries_per_request = tokens % 6 == 0 ? 6 : 1, s.seed = random(), s.rotate = false;
    all.push_back(s);
  }
  SparseCaseShape s;
  s.tokens = 3, s.extra_most = 300;
  s.code_limit = 8, s.rotate = false, s.seed = random();
  all.push_back(s);  // subnormal codes only
  s.code_limit = 127, s.rotate = true, s.seed = random();
  all.push_back(s);  // every code
  s.code_limit = 0, s.largest_scale = 140, s.query_scale = 0.01, s.seed = random();
  all.push_back(s);  // scale bytes beyond one step
  s.largest_scale = 0, s.query_scale = 1, s.masked = 1, s.seed = random();
  all.push_back(s);  // nothing visible
  return all;
}

/// Runs a plan twice with poisoned outputs; the results must agree bit for bit.
SparseCase run(const SparseCase& original, const Plan& plan, const ops::DeviceInfo& device, std::string& failure) {
  SparseCase c = original;
  DeviceCase on_device(c);
  const ops::SparseAttentionArgs args = on_device.args();
  const auto space = ops::sparse_decode::workspace_for(args, plan);
  // Mail finds what launches of other plans have left.
  static DeviceMemory lasting;
  DeviceMemory fresh;
  DeviceMemory& workspace = plan.mail ? lasting : fresh;
  if (workspace.bytes() < space.total) {
    workspace = DeviceMemory(space.total);
    workspace.fill(0xFF);
    check(cudaMemset(workspace.data(), 0, space.zeroed), "cudaMemset");
  }
  SparseCase first;
  for (int time = 0; time < 2; ++time) {
    on_device.poison();
    ops::sparse_decode::run_plan(args, {device, workspace.data(), nullptr}, plan);
    check(cudaGetLastError(), "launch");
    check(cudaDeviceSynchronize(), "run");
    on_device.download();
    if (time == 0) first = c;
  }
  const auto same = [&](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
  };
  if (!same(first.out, c.out) || !same(first.lse, c.lse) || !same(first.codes, c.codes))
    failure = "differs from run to run";
  return c;
}

}  // namespace

int check_attention(const ops::DeviceInfo& device, bool small, unsigned seed) {
  std::mt19937 random(seed);
  struct Job {
    SparseCaseShape shape;
    std::vector<Plan> plans;
  };
  std::vector<Job> jobs;
  for (auto& s : shapes(small, random)) jobs.push_back({s, plans_for(s, device, random)});
  std::atomic<size_t> next = 0;
  std::mutex gpu, print;
  int failures = 0, done = 0;
  double worst = 0, worst_with_rope = 0;
  const auto work = [&] {
    for (size_t j = next++; j < jobs.size(); j = next++) {
      const SparseCase original = ops::make_sparse_case(jobs[j].shape);
      const int step = original.shape.tokens > 16 ? 17 : 1;
      const auto references = ops::sparse_references(original, step);
      for (const Plan& plan : jobs[j].plans) {
        Result r{describe(jobs[j].shape, plan), "", 0};
        SparseCase c;
        try {
          std::lock_guard lock(gpu);
          c = run(original, plan, device, r.failure);
        } catch (const std::exception& e) {
          r.failure = e.what();
        }
        if (r.failure.empty()) {
          const auto got = ops::compare_sparse(c, references, step);
          r.relative_l2 = got.relative_l2, r.failure = got.failure;
          // The warpgroup kernel rounds probabilities to bf16 when scales exceed what fp16 holds.
          // A few tokens with few rows may sit where even the exact output rounds badly; rotation rounds an eighth of
          // it twice.
          const double limit = plan.wide && c.shape.largest_scale ? 2.5e-3
                               : c.shape.rotate                   ? std::max(kToleranceWithRope, 1.12 * got.rounding_l2)
                                                                  : std::max(kTolerance, 1.06 * got.rounding_l2);
          if (got.failure.empty() && got.relative_l2 > limit) r.failure = "too inexact";
        }
        std::lock_guard lock(print);
        ++done;
        double& w = jobs[j].shape.rotate ? worst_with_rope : worst;
        if (r.failure.empty())
          w = std::max(w, r.relative_l2);
        else
          ++failures;
        std::printf("%s %-100s %.3g %s\n", r.failure.empty() ? "ok  " : "FAIL", r.name.c_str(), r.relative_l2,
                    r.failure.c_str());
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::min(16u, std::max(1u, std::thread::hardware_concurrency())); ++i)
    threads.emplace_back(work);
  for (auto& t : threads) t.join();
  std::printf("check: %d runs, %d failures, worst relative L2 %.3g (with inverse RoPE %.3g)\n", done, failures, worst,
              worst_with_rope);
  std::fflush(stdout);
  return failures;
}

}  // namespace fathom::gpu
