#include "doctor/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "bench/url.h"

namespace fathom::doctor {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void add(std::vector<Check>& out, Level level, std::string found, std::string cause = "", std::string remedy = "") {
  out.push_back({"server", level, std::move(found), std::move(cause), std::move(remedy)});
}

/// Mean values of all GPUs, sampled ten times a second until stop().
class GpuWatch {
 public:
  /// Samples nothing unless the server is on this machine.
  GpuWatch(bool local, const std::string& library) {
    if (!local) return;
    std::string why_not;
    nvml_ = Nvml::open(library, why_not);
    if (!nvml_) return;
    for (const GpuState& g : nvml_->read().gpus) {
      WorkSamples s;
      s.name = g.name, s.index = g.index, s.clock_max = g.sm_clock_max.value_or(0);
      samples_.push_back(s);
    }
    if (!samples_.empty()) thread_ = std::thread([this] { run(); });
  }
  ~GpuWatch() { stop(); }

  std::vector<WorkSamples> stop() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    std::vector<WorkSamples> out = samples_;
    for (WorkSamples& s : out) {
      const double n = static_cast<double>(std::max<size_t>(1, s.samples));
      for (double* sum : {&s.busy, &s.memory_busy, &s.power, &s.limit, &s.clock}) *sum /= n;
    }
    return out;
  }

 private:
  void run() {
    while (!ended_) {
      for (WorkSamples& s : samples_) {
        const GpuState g = nvml_->sample(s.index);
        if (!g.busy) continue;
        ++s.samples;
        s.busy += *g.busy / 100.0, s.memory_busy += g.memory_busy.value_or(0) / 100.0;
        s.power += g.power.value_or(0), s.limit += g.power_limit.value_or(0), s.clock += g.sm_clock.value_or(0);
        s.hottest = std::max<double>(s.hottest, g.temperature.value_or(0));
        s.reasons |= g.clock_reasons.value_or(0);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::unique_ptr<Nvml> nvml_;
  std::vector<WorkSamples> samples_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

/// Traces in a folder that were not there before.
class NewTraces {
 public:
  explicit NewTraces(fs::path folder) : folder_(std::move(folder)), before_(list()) {}

  /// The first one that stays as long as it is for half a second; empty after `patience`.
  fs::path wait(std::chrono::seconds patience) const {
    const auto end = Clock::now() + patience;
    std::pair<fs::path, uintmax_t> last;
    while (Clock::now() < end && !interrupted()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      for (const fs::path& path : list()) {
        if (std::find(before_.begin(), before_.end(), path) != before_.end()) continue;
        std::error_code error;
        const uintmax_t size = fs::file_size(path, error);
        if (!error && size > 0 && last == std::pair(path, size)) return path;
        last = {path, size};
        break;
      }
    }
    return {};
  }

 private:
  std::vector<fs::path> list() const {
    std::vector<fs::path> out;
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (name.ends_with(".json.gz") || name.ends_with(".json")) out.push_back(at->path());
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  fs::path folder_;
  std::vector<fs::path> before_;
};

/// A folder of its own that is left for the user: the trace in it is named in the report.
std::string fresh_folder() {
  std::string path = (fs::temp_directory_path() / "fathom-doctor-XXXXXX").string();
  if (!::mkdtemp(path.data())) fail("{}: cannot make a folder there: give --profile-dir", path);
  return path;
}

std::string first_line(const std::string& text) {
  return printable(text.substr(0, text.find('\n')), 300);
}

class Examination {
 public:
  explicit Examination(const ServerOptions& o) : o_(o) {}

  ServerReport run() {
    r_.local = bench::parse_url(o_.url).is_local();
    const auto target = bench::http_target({.url = o_.url, .model = o_.model, .api_key = o_.api_key});
    const std::string before = metrics();
    r_.kind = engine_of_metrics(before);
    bench::WorkloadOptions workload;
    workload.input = {o_.input, o_.input}, workload.output = {o_.output, o_.output}, workload.seed = 20;
    GpuWatch watch(r_.local, o_.nvml);
    r_.sweep = bench::run_sweep(*target, workload, {.levels = o_.levels, .rounds = o_.rounds});
    r_.sweep.content = "prose";
    r_.gpus = watch.stop();
    for (const WorkSamples& s : r_.gpus)
      for (Check& c : work_checks(s)) r_.checks.push_back(std::move(c));
    for (Check& c : metrics_checks(before, metrics())) r_.checks.push_back(std::move(c));
    for (const std::string& remark : bench::remarks(r_.sweep))
      add(r_.checks, Level::note, remark, "seen in the load test", "docs/benchmarking.md explains it");
    if (interrupted()) return std::move(r_);
    profile(*target, workload);
    return std::move(r_);
  }

 private:
  std::string metrics() const {
    try {
      const auto answer = bench::http_call({.url = o_.url, .path = "/metrics", .api_key = o_.api_key});
      return answer.status == 200 ? answer.body : "";
    } catch (const Error&) {
      return "";  // a server without metrics is examined from outside
    }
  }

  void profile(bench::Target& target, const bench::WorkloadOptions& workload_options) {
    if (o_.profile_steps <= 0) return void(r_.trace_why_not = "not asked for");
    if (r_.kind != "fathom" && r_.kind != "SGLang")
      return void(r_.trace_why_not =
                      "only fathom and SGLang end a profile by themselves; make one with the engine's own means and "
                      "give it with --trace");
    std::string folder = o_.profile_folder;
    if (folder.empty() && !r_.local)
      return void(r_.trace_why_not =
                      "the server is on another machine: give --profile-dir, a folder that both see, or "
                      "bring the trace here and give it with --trace");
    if (folder.empty()) folder = fresh_folder();
    folder = fs::absolute(folder).string();
    const NewTraces traces(folder);

    bench::Workload workload(workload_options);
    const int64_t level = o_.levels.back();
    std::atomic<bool> under_way = false, ended = false;
    std::exception_ptr failure;
    std::thread load([&] {
      try {
        // Behind the first answers the load is steady; three more rounds follow.
        target.run({level, 0, level * 4, uint64_t{1} << 32}, workload, [&](int64_t) { under_way = true; });
      } catch (...) {
        failure = std::current_exception();
      }
      ended = true;
    });
    while (!under_way && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    start_profile(folder);
    load.join();
    if (failure) std::rethrow_exception(failure);
    if (!r_.trace_why_not.empty()) return;
    const fs::path trace = traces.wait(std::chrono::seconds(60));
    if (trace.empty())
      r_.trace_why_not = fmt::format("no trace appeared in {} within 60 s: does the server write to that folder?",
                                     printable(folder, 300));
    else
      r_.trace = trace.string();
  }

  void start_profile(const std::string& folder) {
    try {
      std::string quoted;
      for (const char c : folder) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
      }
      const bool fathom = r_.kind == "fathom";
      const auto answer =
          bench::http_call({.url = o_.url,
                            .method = "POST",
                            .path = "/start_profile",
                            .body = fmt::format(R"({{"output_dir": "{}", "num_steps": {}, "activities": [{}]}})",
                                                quoted, o_.profile_steps, fathom ? "\"CPU\"" : "\"CPU\", \"GPU\""),
                            .api_key = o_.api_key});
      if (answer.status != 200)
        r_.trace_why_not =
            fmt::format("/start_profile was refused (status {}): {}", answer.status, first_line(answer.body));
    } catch (const Error& e) {
      r_.trace_why_not = e.what();
    }
  }

  const ServerOptions& o_;
  ServerReport r_;
};

}  // namespace

std::string engine_of_metrics(std::string_view metrics) {
  // fathom has vLLM's names too, so that dashboards work: its own come first.
  for (const auto& [prefix, name] : {std::pair{"\nfathom_", "fathom"}, {"\nsglang:", "SGLang"}, {"\nvllm:", "vLLM"}})
    if (metrics.find(prefix) != metrics.npos || metrics.starts_with(prefix + 1)) return name;
  return "unknown";
}

std::optional<double> metric(std::string_view metrics, std::string_view name) {
  double sum = 0;
  bool found = false;
  while (!metrics.empty()) {
    const size_t newline = std::min(metrics.find('\n'), metrics.size());
    std::string_view line = metrics.substr(0, newline);
    metrics.remove_prefix(std::min(metrics.size(), newline + 1));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with('{')) {
      const size_t close = line.rfind('}');
      if (close == line.npos) continue;
      line.remove_prefix(close + 1);
    }
    if (!line.starts_with(' ')) continue;
    line.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc() || !std::isfinite(value)) continue;
    sum += value, found = true;
  }
  return found ? std::optional(sum) : std::nullopt;
}

std::vector<Check> metrics_checks(const std::string& before, const std::string& after) {
  std::vector<Check> out;
  const std::string kind = engine_of_metrics(before);
  if (before.empty())
    add(out, Level::note, "the server has no /metrics", "it was started without them, or a proxy hides them",
        "SGLang: --enable-metrics");
  else
    add(out, Level::ok, "/metrics of " + (kind == "unknown" ? "an unknown engine" : kind));
  const auto grown = [&](std::string_view name) {
    const auto old = metric(before, name), now = metric(after, name);
    return now ? *now - old.value_or(0) : 0.0;
  };
  const std::string queue = kind == "SGLang" ? "sglang:num_running_reqs" : "vllm:num_requests_running";
  if (const double running = metric(before, queue).value_or(0); running > 0)
    add(out, Level::warning, fmt::format("{:g} requests of others were running when the load test began", running),
        "the server is in use", "measure it alone: these numbers hold for the mixture only");
  if (const double failed = grown("fathom_engine_failures_total"); failed > 0)
    add(out, Level::bad, fmt::format("{:g} steps of the engine failed", failed), "see the server's log",
        "fathom check MODEL on that machine");
  if (const double refused = grown("fathom_requests_refused_total"); refused > 0)
    add(out, Level::warning, fmt::format("{:g} requests were refused", refused), "the queue was full (429)",
        "a longer queue, fewer clients, or a second server");
  if (const double again = grown("vllm:num_preemptions_total"); again > 0)
    add(out, Level::warning, fmt::format("{:g} times an output gave way to others and was computed again", again),
        "the cache is too small for what is open", "more memory for the cache, fewer open requests, shorter contexts");
  if (const auto hits = grown("vllm:prefix_cache_hits_total"), asked = grown("vllm:prefix_cache_queries_total");
      asked > 0 && hits > 0.3 * asked)
    add(out, Level::note, fmt::format("{:.0f} % of the prompt tokens came from the prefix cache", 100 * hits / asked),
        "prompts that were seen before", "time to first token is of cached prompts");
  return out;
}

ServerReport examine_server(const ServerOptions& options) {
  return Examination(options).run();
}

}  // namespace fathom::doctor
