// Timing on the GPU: cold inputs (index sets rotate through a pool several times the L2), CUDA graph replay, medians.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "check.h"
#include "device_case.h"
#include "ops/sparse_attention/decode_plan.h"

namespace fathom::gpu {
namespace {

using ops::sparse_decode::Plan;

struct BenchShape {
  const char* name;
  int tokens, window, extra, queries;
  double must, goal;  // microseconds asked for in docs/kernels/sparse_attention.md; 0: none stated
  int heads = 64;
};

constexpr BenchShape kShapes[] = {
    {"B=1", 1, 128, 512, 1, 10, 6},
    {"B=2", 2, 128, 512, 1, 10, 6},
    {"B=4", 4, 128, 512, 1, 11, 6.5},
    {"B=8", 8, 128, 512, 1, 12, 7.5},
    {"B=16", 16, 128, 512, 1, 15, 9},
    {"B=32", 32, 128, 512, 1, 22, 12},
    {"B=64", 64, 128, 512, 1, 36, 18},
    {"B=128", 128, 128, 512, 1, 44, 30},
    {"B=1 1152 rows", 1, 128, 1024, 1, 0, 0},
    {"B=8 1152 rows", 8, 128, 1024, 1, 0, 0},
    {"B=64 1152 rows", 64, 128, 1024, 1, 0, 0},
    {"B=1 8320 rows", 1, 128, 8192, 1, 0, 0},
    {"B=8 8320 rows", 8, 128, 8192, 1, 0, 0},
    {"B=1 window", 1, 128, 0, 1, 0, 0},
    {"B=64 window", 64, 128, 0, 1, 0, 0},
    {"B=1 x6", 6, 128, 512, 6, 0, 0},
    {"B=8 x6", 48, 128, 512, 6, 0, 0},
    {"B=48", 48, 128, 512, 1, 0, 0},
    {"B=8 x6 8 heads", 48, 128, 512, 6, 0, 0, 8},
    {"B=8 48 heads", 8, 128, 512, 1, 0, 0, 48},
    {"B=1 x6 8 heads", 6, 128, 512, 6, 0, 0, 8},
    {"B=32 x6 8 heads", 192, 128, 512, 6, 0, 0, 8},
    {"B=8 x6 1152 8 heads", 48, 128, 1024, 6, 0, 0, 8},
    {"B=8 x4 16 heads", 32, 128, 512, 4, 0, 0, 16},
    {"B=8 16 heads", 8, 128, 512, 1, 0, 0, 16},
    {"B=64 8 heads", 64, 128, 512, 1, 0, 0, 8},
};

constexpr int kPoolRows = 1 << 19;  // 306 MB of V4 rows
constexpr size_t kColdBytes = 200u << 20;
constexpr int64_t kQueryTokens = 4096;  // of 64 heads: 268 MB of queries, as much of outputs

/// One pool of random rows, queries and index sets for all shapes.
struct Inputs {
  DeviceMemory pool, q, out, lse, sink, position, freq;
  ops::KvPool kv;
  int64_t sets = 0;

  explicit Inputs(int page_rows) {
    std::mt19937_64 random(7);
    kv.page_rows = page_rows, kv.stride = ops::page_bytes(ops::RowFormat::v4, page_rows);
    const int64_t pages = kPoolRows / page_rows;
    std::vector<std::byte> host(pages * kv.stride);
    ops::KvPool view{host.data(), kv.stride, page_rows};
    std::vector<uint64_t> noise(1 << 16);
    for (auto& v : noise) v = random();
    for (int64_t slot = 0; slot < kPoolRows; ++slot) {
      auto* row = reinterpret_cast<uint64_t*>(view.row_data(ops::RowFormat::v4, slot));
      const uint64_t start = random();
      for (int i = 0; i < 56; ++i) row[i] = (noise[(start + i) & 0xFFFF] & 0xBFBFBFBFBFBFBFBFu) | 0x2020202020202020u;
      for (int i = 56; i < 72; ++i) row[i] = (noise[(start + i) & 0xFFFF] & 0x80FF80FF80FF80FFu) | 0x3F003F003F003F00u;
      auto* scales = reinterpret_cast<uint8_t*>(view.row_scales(slot));
      for (int i = 0; i < 8; ++i) scales[i] = static_cast<uint8_t>(125 + (start >> (8 + i) & 1));
    }
    pool = upload(host);
    kv.data = static_cast<std::byte*>(pool.data());
    std::vector<bf16> queries(int64_t{128} * 64 * 512);
    for (auto& v : queries) v = to_bf16(static_cast<float>(static_cast<int>(random() & 0xFFFF) - 32768) / 19000.0f);
    const size_t block = queries.size() * 2;
    q = DeviceMemory(kQueryTokens / 128 * block), out = DeviceMemory(q.bytes());
    for (int64_t i = 0; i < kQueryTokens / 128; ++i)
      check(cudaMemcpy(static_cast<std::byte*>(q.data()) + i * block, queries.data(), block, cudaMemcpyHostToDevice),
            "upload");
    lse = DeviceMemory(kQueryTokens * 64 * 4);
    sink = upload(std::vector<float>(64, 0.5f));
    position = upload(std::vector<int32_t>(kQueryTokens, 54321));
    std::vector<float> f;
    for (int i = 0; i < 32; ++i) f.push_back(std::pow(10000.0f, -static_cast<float>(i) / 32));
    freq = upload(f);
  }
  template <typename T>
  static DeviceMemory upload(const std::vector<T>& v) {
    DeviceMemory m(v.size() * sizeof(T));
    check(cudaMemcpy(m.data(), v.data(), m.bytes(), cudaMemcpyHostToDevice), "upload");
    return m;
  }
};

/// What each call finds at addresses of its own: the KV rows and indices, queries and outputs too, or nothing.
enum class Fresh { nothing, rows, everything };

/// Arguments of several index sets of one shape, together larger than the L2.
struct Rotation {
  std::vector<ops::SparseAttentionArgs> sets;
  DeviceMemory index;

  Rotation(const BenchShape& s, const Inputs& in, Fresh fresh) {
    const bool warm = fresh == Fresh::nothing;
    const int rows = s.window + s.extra, requests = s.tokens / s.queries;
    const auto set_bytes = static_cast<size_t>(requests) * rows * 584;
    const size_t count = warm ? 8 : std::clamp<size_t>(kColdBytes / set_bytes + 1, 4, 300);
    std::mt19937 random(11);
    std::vector<int32_t> host(count * s.tokens * rows);
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int32_t>(random() % kPoolRows);
    // Query tokens of a request name the same rows, but for the last column in 64.
    for (size_t i = 0; i < host.size(); ++i) {
      const size_t token = i / rows;
      if (token % s.queries && i % rows % 64 != 63) host[i] = host[i - token % s.queries * rows];
    }
    if (warm)
      for (size_t i = 0; i < host.size(); ++i) host[i] = host[i % (static_cast<size_t>(s.tokens) * rows)];
    index = Inputs::upload(host);
    for (size_t i = 0; i < count; ++i) {
      ops::SparseAttentionArgs a;
      const int64_t tokens = s.tokens, heads = s.heads;
      const int64_t first = fresh == Fresh::everything ? static_cast<int64_t>(i) * tokens % (kQueryTokens - tokens) : 0;
      a.q =
          View<const bf16, 3>(static_cast<const bf16*>(in.q.data()) + first * heads * 512, tokens, heads, int64_t{512});
      a.out = View<bf16, 3>(static_cast<bf16*>(in.out.data()) + first * heads * 512, tokens, heads, int64_t{512});
      a.lse = View<float, 2>(static_cast<float*>(in.lse.data()) + first * heads, tokens, heads);
      a.sink = View<const float, 1>(static_cast<const float*>(in.sink.data()), heads);
      a.position = View<const int32_t, 1>(static_cast<const int32_t*>(in.position.data()), tokens);
      a.rope_freq = View<const float, 1>(static_cast<const float*>(in.freq.data()), int64_t{32});
      a.scale = 0.0441941738f;
      a.queries_per_request = s.queries;
      const auto* base = static_cast<const int32_t*>(index.data()) + i * tokens * rows;
      a.window.pool = a.extra.pool = in.kv;
      a.window.index.data = base, a.extra.index.data = s.extra ? base + s.window : nullptr;
      a.window.index.size[0] = a.extra.index.size[0] = tokens;
      a.window.index.size[1] = s.window, a.extra.index.size[1] = s.extra;
      a.window.index.stride[0] = a.extra.index.stride[0] = rows;
      a.window.index.stride[1] = a.extra.index.stride[1] = 1;
      sets.push_back(a);
    }
  }
};

struct Workplace {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  DeviceMemory memory{size_t{1} << 30};
  Workplace() {
    check(cudaStreamCreate(&stream), "stream");
    check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
    check(cudaMemset(memory.data(), 0, memory.bytes()), "cudaMemset");
  }
};

/// Median microseconds of one call, or a negative number when the plan cannot run.
double time_plan(Workplace& w, const Rotation& r, const ops::DeviceInfo& device, const Plan& plan, int replays) {
  const auto space = ops::sparse_decode::workspace_for(r.sets[0], plan);
  if (space.total > w.memory.bytes()) return -1;
  check(cudaMemsetAsync(w.memory.data(), 0, space.zeroed, w.stream), "cudaMemset");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeThreadLocal), "capture");
  bool refused = false;
  try {
    for (const auto& args : r.sets) ops::sparse_decode::run_plan(args, {device, w.memory.data(), w.stream}, plan);
  } catch (const std::exception&) {
    refused = true;
  }
  const cudaError_t ended = cudaStreamEndCapture(w.stream, &graph);
  if (refused || ended != cudaSuccess || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
    cudaGetLastError();
    if (graph) cudaGraphDestroy(graph);
    return -1;
  }
  std::vector<float> times;
  for (int i = 0; i < replays + 2; ++i) {
    check(cudaEventRecord(w.begin, w.stream), "event");
    if (cudaGraphLaunch(exec, w.stream) != cudaSuccess) break;
    check(cudaEventRecord(w.end, w.stream), "event");
    check(cudaEventSynchronize(w.end), "graph");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, w.begin, w.end), "event");
    if (i >= 2) times.push_back(ms);
  }
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  if (times.empty()) {
    cudaGetLastError();
    return -1;
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3 / static_cast<double>(r.sets.size());
}

double copy_bandwidth(Workplace& w) {
  const size_t half = w.memory.bytes() / 2;
  auto* base = static_cast<std::byte*>(w.memory.data());
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    check(cudaEventRecord(w.begin, w.stream), "event");
    check(cudaMemcpyAsync(base, base + half, half, cudaMemcpyDeviceToDevice, w.stream), "copy");
    check(cudaEventRecord(w.end, w.stream), "event");
    check(cudaEventSynchronize(w.end), "copy");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, w.begin, w.end), "event");
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return 2.0 * static_cast<double>(half) / (times[times.size() / 2] * 1e-3);
}

/// Plans of the kernel for few rows: for each kind of block every number of splits that gives a block few enough tiles.
void add_burst_plans(const BenchShape& s, const ops::DeviceInfo& device, std::vector<Plan>& plans) {
  const int tiles = (s.window + s.extra + 15) / 16;
  const bool sm90 = device.compute_capability >= 90;
  for (int heads : {16, 32, 64}) {
    if (heads > 16 && heads / 2 >= s.heads) continue;
    const int units = s.tokens * ((s.heads + heads - 1) / heads), resident = heads == 16 ? 2 : 1;
    for (int splits = 1; splits <= std::min(32, tiles); ++splits) {
      const int each = (tiles + splits - 1) / splits;
      if (each > 5 || (tiles + each - 1) / each != splits || units * splits > 4 * device.sm_count) continue;
      Plan plan{heads, splits, false, false, units * splits <= resident * device.sm_count ? 40000 : 0};
      plan.burst = each;
      for (bool overlap : {false, true}) {
        plan.overlap = overlap;
        if (!overlap || sm90) plans.push_back(plan);
      }
    }
  }
  for (int splits = 1; device.compute_capability == 90 && s.heads > 32 && splits <= std::min(32, tiles); ++splits) {
    const int each = (tiles + splits - 1) / splits, units = s.tokens * ((s.heads + 63) / 64);
    if (each > 5 || (tiles + each - 1) / each != splits || units * splits > 3 * device.sm_count) continue;
    Plan plan{64, splits, true, true, units * splits <= device.sm_count ? 40000 : 0};
    plan.burst = each;
    plans.push_back(plan);
  }
  for (int cluster : {8, 16}) {
    const int each = (tiles + cluster - 1) / cluster;
    if (!sm90 || each > (cluster == 16 ? 3 : 5) || s.tokens * ((s.heads + 15) / 16) * cluster > 4 * device.sm_count)
      continue;
    Plan plan{16, cluster, false, true};
    plan.burst = each, plan.cluster = cluster;
    plans.push_back(plan);
  }
}

/// Plans that take the query tokens of a request together.
void add_packed_plans(const BenchShape& s, const ops::DeviceInfo& device, std::vector<Plan>& plans) {
  const int tiles = (s.window + s.extra + 15) / 16;
  for (int heads : {32, 64}) {
    const int units = s.tokens / s.queries * ((s.heads * s.queries + heads - 1) / heads);
    for (int splits = 1; s.queries > 1 && splits <= std::min(32, tiles); ++splits) {
      const int each = (tiles + splits - 1) / splits;
      if ((tiles + each - 1) / each != splits || (splits > 1 && units * splits > device.sm_count)) continue;
      Plan plan{heads, splits, false, device.compute_capability >= 90, 40000};
      plan.pack = s.queries;
      plans.push_back(plan);
    }
  }
}

std::vector<Plan> grid_of_plans(const BenchShape& s, const ops::DeviceInfo& device) {
  std::vector<Plan> plans;
  add_burst_plans(s, device, plans);
  add_packed_plans(s, device, plans);
  const int tiles = (s.window + s.extra + 15) / 16;
  for (int heads : {16, 32, 64}) {
    if (heads > 16 && heads / 2 >= s.heads) continue;
    const int units = s.tokens * ((s.heads + heads - 1) / heads);
    int last_each = 0;
    for (int splits = 1; splits <= std::min(32, tiles); ++splits) {
      const int each = (tiles + splits - 1) / splits, blocks = units * splits;
      if (each == last_each || (tiles + each - 1) / each != splits) continue;  // the same work in more blocks
      last_each = each;
      const double load = static_cast<double>(blocks) / device.sm_count;
      if (splits > 1 && load > 4.2) continue;
      if (load < 0.1 && splits < std::min(16, tiles)) continue;
      const bool resident = load <= (heads == 16 ? 2 : 1);
      plans.push_back({heads, splits, false, false, resident ? 40000 : 0});
      if (device.compute_capability >= 90) plans.push_back({heads, splits, false, true, resident ? 40000 : 0});
    }
  }
  if (device.compute_capability != 90 || s.heads <= 16) return plans;
  const int wide_tiles = (s.window + s.extra + 63) / 64, wide_units = s.tokens * ((s.heads + 63) / 64);
  for (int splits = 1; splits <= std::min(32, wide_tiles); ++splits) {
    const int each = (wide_tiles + splits - 1) / splits, blocks = wide_units * splits;
    if ((wide_tiles + each - 1) / each != splits || (splits > 1 && blocks > 3 * device.sm_count)) continue;
    for (bool overlap : {false, true})
      plans.push_back({64, splits, true, overlap, blocks <= device.sm_count ? 40000 : 0});
  }
  return plans;
}

/// The same plans with partial results by mail, where all blocks are resident.
void add_mail_plans(std::vector<Plan>& plans) {
  const size_t count = plans.size();
  for (size_t i = 0; i < count; ++i) {
    Plan plan = plans[i];
    if (!plan.burst || plan.cluster || plan.patience == 0 || plan.splits == 1 || plan.splits > 16) continue;
    plan.mail = true;
    plans.push_back(plan);
  }
}

std::string text_of(const Plan& p) {
  char text[64];
  std::snprintf(text, sizeof(text), "%dx%d%s%s%s", p.block_heads, p.splits,
                p.wide       ? p.cluster ? "wc"
                               : p.burst ? "wb"
                                         : "w"
                : p.cluster  ? "c"
                : p.burst    ? "b"
                : p.pack > 1 ? "p"
                             : "",
                p.mail ? "m" : "", p.overlap ? "o" : "");
  return text;
}

/// The best plans by rows alone, again with everything at fresh addresses.
void time_fresh(Workplace& w, const BenchShape& s, const Rotation& fresh, const ops::DeviceInfo& device,
                std::vector<std::pair<double, Plan>> timed) {
  std::sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < std::min<size_t>(timed.size(), 4); ++i)
    std::printf("fresh %-16s %-8s %8.2f us, %8.2f with everything fresh\n", s.name, text_of(timed[i].second).c_str(),
                timed[i].first, time_plan(w, fresh, device, timed[i].second, 7));
}

}  // namespace

void bench_attention(const ops::DeviceInfo& device, bool all_plans, const std::string& only) {
  Workplace w;
  const double bandwidth = copy_bandwidth(w);
  std::printf("bench: copy bandwidth %.2f TB/s, %d SMs, sm_%d\n", bandwidth * 1e-12, device.sm_count,
              device.compute_capability);
  const Inputs in(64);
  std::string table =
      "shape            floor  must  goal | portable  plan    | sm90     plan    | chosen        warm | GB/s TFLOP/s | "
      "chosen sm90, without inverse RoPE\n";
  for (const BenchShape& s : kShapes) {
    if (!only.empty() && ("," + only + ",").find(std::string(",") + s.name + ",") == std::string::npos) continue;
    const Rotation cold(s, in, Fresh::rows), warm(s, in, Fresh::nothing), fresh(s, in, Fresh::everything);
    std::pair<double, Plan> best[2] = {{1e30, {}}, {1e30, {}}};
    std::vector<std::pair<double, Plan>> timed;
    std::vector<Plan> plans;
    if (all_plans) plans = grid_of_plans(s, device), add_mail_plans(plans);
    for (const Plan& plan : plans) {
      const double us = time_plan(w, cold, device, plan, 5);
      std::printf("plan %-16s %-8s %8.2f us\n", s.name, text_of(plan).c_str(), us);
      if (us > 0) timed.push_back({us, plan});
      if (us > 0 && us < best[plan.wide || plan.overlap || plan.cluster].first)
        best[plan.wide || plan.overlap || plan.cluster] = {us, plan};
    }
    time_fresh(w, s, fresh, device, timed);
    const Plan chosen = ops::sparse_decode::choose_plan(cold.sets[0], device, false);
    const Plan chosen_sm90 = ops::sparse_decode::choose_plan(cold.sets[0], device, true);
    const double us = time_plan(w, cold, device, chosen, 9), warm_us = time_plan(w, warm, device, chosen, 9);
    const double sm90_us = device.compute_capability == 90 ? time_plan(w, cold, device, chosen_sm90, 9) : -1;
    Rotation plain(s, in, Fresh::rows);
    for (auto& args : plain.sets) args.position = {};
    const double plain_us = device.compute_capability == 90 ? time_plan(w, plain, device, chosen_sm90, 9) : -1;
    if (us > 0 && us < best[0].first) best[0] = {us, chosen};
    if (sm90_us > 0 && sm90_us < best[1].first) best[1] = {sm90_us, chosen_sm90};
    const double rows = s.window + s.extra, pairs = static_cast<double>(s.tokens) * s.heads;
    const double bytes = s.tokens / s.queries * rows * 584 + pairs * 512 * 4 + s.tokens * rows * 4;
    const double flops = pairs * rows * 2048;
    const double fastest = std::min(best[0].first, best[1].first);
    char line[256];
    std::snprintf(
        line, sizeof(line),
        "%-16s %5.2f %5.1f %5.1f | %7.2f %-8s | %7.2f %-8s | %7.2f %-7s %6.2f | %5.0f %6.1f | %6.2f %-8s %6.2f\n",
        s.name, bytes / bandwidth * 1e6, s.must, s.goal, best[0].first, text_of(best[0].second).c_str(),
        best[1].first < 1e29 ? best[1].first : -1, text_of(best[1].second).c_str(), us, text_of(chosen).c_str(),
        warm_us, bytes / fastest * 1e-3, flops / fastest * 1e-6, sm90_us, text_of(chosen_sm90).c_str(), plain_us);
    table += line;
  }
  std::printf("%s", table.c_str());
  std::fflush(stdout);
}

void profile_attention(const ops::DeviceInfo& device, int tokens, int extra, int block_heads, int splits, int kind) {
  Workplace w;
  const Inputs in(64);
  const BenchShape shape{"profile", tokens, 128, extra, 1, 0, 0};
  const Rotation r(shape, in, Fresh::rows);
  Plan plan{block_heads, splits, kind > 0, false, splits == 1 ? 0 : 40000};
  if (kind > 1) plan.burst = ((shape.window + extra + 15) / 16 + splits - 1) / splits;
  for (size_t i = 0; i < std::min<size_t>(r.sets.size(), 4); ++i)
    ops::sparse_decode::run_plan(r.sets[i], {device, w.memory.data(), w.stream}, plan);
  check(cudaStreamSynchronize(w.stream), "run");
}

}  // namespace fathom::gpu
