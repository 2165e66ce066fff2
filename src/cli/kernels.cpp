// fathom kernels: the kernel lab at the command line.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "lab/session.h"

namespace fathom::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::vector<std::string> ops, variants, shapes, batches;
  std::string as;
  int64_t seed = 1, cases = 24;
  double seconds = 0.3;
  bool list = false, check_only = false, time_only = false, json = false, bare = false;
};

/// "1,8" and repeated options alike.
std::vector<std::string> words(const std::vector<std::string>& values) {
  std::vector<std::string> all;
  for (const std::string& value : values) {
    size_t begin = 0;
    while (begin <= value.size()) {
      const size_t end = std::min(value.find(',', begin), value.size());
      if (end == begin) fail("an empty name in \"{}\"", printable(value));
      all.push_back(value.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return all;
}

std::vector<int64_t> numbers(const std::vector<std::string>& values) {
  std::vector<int64_t> all;
  for (const std::string& word : words(values)) {
    size_t used = 0;
    int64_t n = 0;
    if (word.size() <= 5 && word.find_first_not_of("0123456789") == std::string::npos) n = std::stoll(word, &used);
    if (n < 1 || n > 4096) fail("--batch {}: a number from 1 to 4096 is expected", printable(word));
    all.push_back(n);
  }
  return all;
}

Json device_json(bool has_gpu) {
  Json j;
  j["threads"] = thread_count();
  if (!has_gpu) {
    j["gpu"] = nullptr;
    j["no_gpu_because"] = lab::gpu::unavailable();
    return j;
  }
  const auto d = lab::gpu::current();
  j["gpu"] = {{"name", d.name},
              {"compute_capability", d.info.compute_capability},
              {"sm_count", d.info.sm_count},
              {"shared_bytes_per_block", d.info.shared_bytes},
              {"l2_bytes", d.info.l2_bytes},
              {"memory_bytes", d.memory_bytes},
              {"driver", d.driver},
              {"runtime", d.runtime}};
  return j;
}

std::string device_line(bool has_gpu) {
  if (!has_gpu) return fmt::format("CPU with {} threads; no GPU: {}", thread_count(), lab::gpu::unavailable());
  const auto d = lab::gpu::current();
  return fmt::format("{}, sm_{}, {} SMs, {} KB shared memory a block, {} MB L2, driver {}.{}", printable(d.name),
                     d.info.compute_capability, d.info.sm_count, d.info.shared_bytes / 1024, d.info.l2_bytes >> 20,
                     d.driver / 1000, d.driver % 1000 / 10);
}

int list(const Flags& flags) {
  const bool has_gpu = lab::gpu::unavailable().empty();
  if (flags.json) {
    Json j = {{"version", 1}, {"device", device_json(has_gpu)}, {"ops", Json::array()}};
    for (const auto& op : lab::all_ops()) {
      Json variants = Json::array();
      for (const auto& v : op.variants())
        variants.push_back({{"name", v.name}, {"backend", v.backend == ops::Backend::cpu ? "cpu" : "cuda"}});
      j["ops"].push_back({{"op", op.op}, {"what", op.what}, {"variants", variants}, {"shapes", op.shapes}});
    }
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  fmt::print("{}\n\n{:<17} {:<24} {:<34} {}\n", device_line(has_gpu), "op", "variants (* needs a GPU)", "timed shapes",
             "what");
  for (const auto& op : lab::all_ops()) {
    std::string variants, shapes;
    for (const auto& v : op.variants())
      variants += fmt::format("{}{} ", v.name, v.backend == ops::Backend::cuda ? "*" : "");
    for (const auto& s : op.shapes) shapes += fmt::format("{} ", s);
    if (shapes.size() > 34) shapes = shapes.substr(0, shapes.rfind(' ', 30)) + " ...";
    fmt::print("{:<17} {:<24} {:<34} {}\n", op.op, variants, shapes, op.what);
  }
  fmt::print("\nfathom kernels --op NAME checks and times one; --op all, every one.\n");
  return 0;
}

/// Prints lines as they come, or collects them for JSON; counts failures.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  void check_header() const {
    if (!json_)
      fmt::print("\n{:<17} {:<9} {:>6} {:>6} {:>9} {:>10} {:>12} {:>5}\n", "check", "variant", "passed", "failed",
                 "cannot run", "L2 to ref", "L2 to double", "ulp");
  }
  void check(const lab::CheckRow& r) {
    failures_ += r.failed > 0;
    if (r.passed + r.failed > 0) checked_ = true;
    if (json_) {
      Json j = {{"op", r.op},
                {"variant", r.variant},
                {"passed", r.passed},
                {"failed", r.failed},
                {"unsupported", r.unsupported},
                {"relative_l2", r.relative_l2},
                {"worst_ulp", r.worst_ulp}};
      j["double_l2"] = r.truth_l2 < 0 ? Json(nullptr) : Json(r.truth_l2);
      j["failures"] = r.failures;
      checks_.push_back(std::move(j));
      return;
    }
    fmt::print("{:<17} {:<9} {:>6} {:>6} {:>9} {:>10.2e} {:>12} {:>5.0f}\n", r.op, r.variant, r.passed, r.failed,
               r.unsupported, r.relative_l2, r.truth_l2 < 0 ? "-" : fmt::format("{:.2e}", r.truth_l2), r.worst_ulp);
    for (const auto& f : r.failures) fmt::print("  WRONG {}\n", f);
    std::fflush(stdout);
  }

  void timing_header() const {
    if (!json_)
      fmt::print("\n{:<17} {:<12} {:>5} {:<9} {:<4} {:>9} {:>6} {:>8} {:>8} {:>9} {:>7}\n", "time", "shape", "batch",
                 "variant", "", "us", "spread", "GB/s", "TFLOP/s", "floor us", "x floor");
  }
  void timing(const lab::TimingRow& r) {
    failures_ += !r.failure.empty();
    timed_ = true;
    const double s = r.timing.seconds;
    const bool cold = r.heat == lab::Heat::cold;
    if (json_) {
      Json j = {{"op", r.op},
                {"variant", r.variant},
                {"shape", r.shape},
                {"batch", r.batch},
                {"sizes", r.sizes},
                {"cache", cold ? "cold" : "warm"},
                {"bytes", r.cost.bytes},
                {"flops", r.cost.flops},
                {"unit", lab::unit_name(r.cost.unit)},
                {"floor_us", r.floor * 1e6}};
      if (r.failure.empty()) {
        j["us"] = s * 1e6, j["fastest_us"] = r.timing.fastest * 1e6, j["spread"] = r.timing.spread;
        j["gb_per_s"] = r.cost.bytes / s * 1e-9, j["tflop_per_s"] = r.cost.flops / s * 1e-12;
        j["times_floor"] = s / r.floor, j["copies"] = r.timing.copies, j["samples"] = r.timing.samples;
        j["beyond_cache"] = r.timing.beyond_cache, j["judged_by"] = r.judged;
      }
      j["failure"] = r.failure.empty() ? Json(nullptr) : Json(r.failure);
      timings_.push_back(std::move(j));
      return;
    }
    fmt::print("{:<17} {:<12} {:>5} {:<9} {:<4} ", r.op, r.shape, r.batch, r.variant, cold ? "cold" : "warm");
    if (!r.failure.empty())
      fmt::print("WRONG {}\n", r.failure);
    else
      fmt::print("{:>9.2f} {:>5.1f}% {:>8.1f} {:>8.3f} {:>9.2f} {:>7.1f}{}\n", s * 1e6, r.timing.spread * 100,
                 r.cost.bytes / s * 1e-9, r.cost.flops / s * 1e-12, r.floor * 1e6, s / r.floor,
                 cold && !r.timing.beyond_cache ? "  (the copies fit the cache)" : "");
    std::fflush(stdout);
  }

  int finish(const Flags& flags, bool has_gpu) {
    if (!checked_ && !timed_) fail("no chosen variant can run any of the chosen cases on this machine");
    if (json_) {
      Json j = {
          {"version", 1}, {"seed", flags.seed}, {"planned_as", flags.as.empty() ? Json(nullptr) : Json(flags.as)}};
      j["device"] = device_json(has_gpu);
      j["ceilings"] = ceilings_;
      j["checks"] = checks_, j["timings"] = timings_, j["failed"] = failures_;
      fmt::print("{}\n", j.dump(2));
    } else {
      fmt::print("\n{}\n", failures_ == 0 ? "all right" : fmt::format("{} lines WRONG", failures_));
    }
    return failures_ == 0 ? 0 : 1;
  }

  void ceilings(bool has_gpu) {
    for (const auto backend : {ops::Backend::cpu, ops::Backend::cuda}) {
      if (backend == ops::Backend::cuda && !has_gpu) continue;
      const auto& c = lab::ceilings(backend);
      const char* name = backend == ops::Backend::cpu ? "cpu" : "gpu";
      if (json_)
        ceilings_[name] = {{"copy_gb_per_s", c.copy * 1e-9},
                           {"fp32_tflop_per_s", c.fp32 * 1e-12},
                           {"bf16_tflop_per_s", c.bf16 * 1e-12},
                           {"fp8_tflop_per_s", c.fp8 * 1e-12},
                           {"note", c.note}};
      else
        fmt::print("{} ceilings: copy {:.1f} GB/s, fp32 {:.2f}, bf16 {:.1f}, fp8 {:.1f} TFLOP/s ({})\n", name,
                   c.copy * 1e-9, c.fp32 * 1e-12, c.bf16 * 1e-12, c.fp8 * 1e-12, c.note);
    }
  }

 private:
  bool json_, checked_ = false, timed_ = false;
  int failures_ = 0;
  Json checks_ = Json::array(), timings_ = Json::array(), ceilings_ = Json::object();
};

int run(const Flags& flags) {
  lab::Options options;
  options.ops = words(flags.ops);
  if (options.ops == std::vector<std::string>{"all"}) options.ops.clear();
  options.variants = words(flags.variants);
  options.shapes = words(flags.shapes);
  options.batches = numbers(flags.batches);
  options.seed = static_cast<uint64_t>(flags.seed);
  options.cases = flags.cases;
  options.seconds = flags.seconds;
  options.as = flags.as;
  if (flags.bare) options.guards = lab::Guards::none;
  if (flags.check_only && flags.time_only) fail("--check-only and --time-only exclude each other");
  catch_interrupts();
  lab::Session session(options);
  Report report(flags.json);
  if (!flags.json) fmt::print("{}\n", device_line(session.has_gpu()));
  if (!flags.json && !flags.as.empty())
    fmt::print("planned as {}: {} SMs, {} KB shared memory a block\n", flags.as, session.gpu().sm_count,
               session.gpu().shared_bytes / 1024);
  if (!flags.time_only) {
    report.check_header();
    session.check([&](const lab::CheckRow& row) { report.check(row); });
  }
  if (!flags.check_only) {
    if (!flags.json) fmt::print("\n");
    report.ceilings(session.has_gpu());
    report.timing_header();
    session.time([&](const lab::TimingRow& row) { report.timing(row); });
  }
  if (interrupted()) fail("interrupted");
  return report.finish(flags, session.has_gpu());
}

}  // namespace

Command kernels_command() {
  return {"kernels", "Kernel lab: check every operation against its reference and time it against its floor",
          [](Parser& p) -> std::function<int()> {
            auto f = std::make_shared<Flags>();
            p.flag("--list", f->list, "List operations, variants and shapes (what no option at all does)");
            p.option("--op", f->ops, "Operation, or all; several: --op a,b");
            p.option("--variant", f->variants,
                     "Variant (ref, cpu, sm80, ...); default every one that runs here. ref is timed only when named");
            p.option("--shape", f->shapes, "Timed shape; default every one");
            p.option("--batch", f->batches,
                     "Tokens or requests of the timed shapes; default 1,8,64 with a GPU, else 1");
            p.flag("--check-only", f->check_only, "Check, do not time");
            p.flag("--time-only", f->time_only, "Time, do not check random cases");
            p.option("--cases", f->cases, "Random cases for each operation", 1, 100000);
            p.option("--seed", f->seed, "Seed of the first random case; case i has seed + i", 0, int64_t{1} << 53);
            p.option("--seconds", f->seconds, "Time to measure for each line", 0.01, 60.0);
            p.option("--as", f->as, "Plan as another GPU: a100, rtx4090, l40s, h100, h200, rtxpro6000, rtx5090, gb10");
            p.flag("--bare", f->bare, "No guard zones: every buffer an allocation of its own, for compute-sanitizer");
            p.flag("--json", f->json, "Print JSON");
            p.footer(
                "Exit status: 0 all right, 1 a wrong result or an error, 2 usage.\n"
                "x floor: time over max(bytes / copy bandwidth, operations / arithmetic rate), both measured on this "
                "device.");
            return [f, &p]() -> int {
              const bool asked = !f->ops.empty() || !f->variants.empty() || !f->shapes.empty() || !f->batches.empty() ||
                                 f->check_only || f->time_only || p.given("--cases") || p.given("--seed") ||
                                 p.given("--seconds") || f->bare || !f->as.empty();
              if (f->list && asked) fail("--list takes no other option than --json");
              return asked ? run(*f) : list(*f);
            };
          }};
}

}  // namespace fathom::cli
