#include "trace/finish.h"

#include <tbb/parallel_sort.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "trace/format.h"
#include "trace/launches.h"

namespace fathom::trace {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The number behind `word` and an optional separator, when `word` does not continue a longer word.
std::optional<int> number_after(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if (at > 0 && ((text[at - 1] | 0x20) >= 'a' && (text[at - 1] | 0x20) <= 'z')) continue;
    size_t i = at + word.size();
    if (i < text.size() && (text[i] == '-' || text[i] == '_' || text[i] == '=' || text[i] == ' ')) ++i;
    int number = 0, digits = 0;
    for (; i < text.size() && is_digit(text[i]) && digits < 7; ++i, ++digits) number = number * 10 + (text[i] - '0');
    if (digits > 0 && digits < 7) return number;
  }
  return {};
}

/// Rank of a merged file's process label: of TP, PP, DP and EP the one that is not zero, else zero.
std::optional<int> rank_of_label(std::string_view label) {
  std::optional<int> rank;
  for (const std::string_view word : {"TP", "PP", "DP", "EP", "rank", "Rank"})
    if (const auto n = number_after(label, word); n && (!rank || *rank == 0)) rank = n;
  return rank;
}

/// Durations of a damaged file may add up to centuries: what would exceed the range of the sums is left out.
void drop_impossible(Trace& trace) {
  Ns sum = 0;
  const auto too_much = [&](const GpuEvent& e) {
    if (e.duration > longest_sum - sum) return true;
    sum += e.duration;
    return false;
  };
  trace.import.negative_duration += std::erase_if(trace.events, too_much);
}

void sort_all(Trace& trace) {
  const bool one_device = trace.devices.size() < 2;
  const auto before = [&](const GpuEvent& a, const GpuEvent& b) {
    if (!one_device) {
      const DeviceId x = trace.device_of(a), y = trace.device_of(b);
      if (x != y) return x < y;
    }
    if (a.start != b.start) return a.start < b.start;
    return std::tuple(-a.duration, index(a.stream), index(a.name), a.correlation, index(a.shape)) <
           std::tuple(-b.duration, index(b.stream), index(b.name), b.correlation, index(b.shape));
  };
  if (!std::is_sorted(trace.events.begin(), trace.events.end(), before))
    tbb::parallel_sort(trace.events.begin(), trace.events.end(), before);
  const auto by_start = [](const auto& a, const auto& b) {
    return std::tuple(a.start, -a.duration) < std::tuple(b.start, -b.duration);
  };
  std::stable_sort(trace.calls.begin(), trace.calls.end(), by_start);
  std::stable_sort(trace.annotations.begin(), trace.annotations.end(), by_start);
}

void find_ranks(Trace& trace) {
  if (!trace.rank) {
    if (const auto n = rank_of_name(trace.path.filename().string())) {
      trace.rank = n;
      trace.import.notes.push_back(fmt::format("rank {} is taken from the file name", *n));
    }
  }
  for (Device& d : trace.devices) {
    if (!d.rank_label.empty())
      d.rank = rank_of_label(d.rank_label);
    else
      d.rank = trace.rank;
  }
}

std::string categories_seen(const ImportReport& import) {
  std::vector<std::pair<uint64_t, std::string>> sorted;
  for (const auto& [category, count] : import.categories) sorted.emplace_back(count, printable(category, 40));
  std::sort(sorted.rbegin(), sorted.rend());
  std::string out;
  for (size_t i = 0; i < sorted.size() && i < 8; ++i)
    out += fmt::format("{}{} ({})", i ? ", " : "", sorted[i].second, sorted[i].first);
  if (sorted.size() > 8) out += fmt::format(" and {} more", sorted.size() - 8);
  return out.empty() ? "none" : out;
}

/// No GPU work: say what there is instead, and the likely cause.
void explain_absence(Trace& trace) {
  ImportReport& import = trace.import;
  uint64_t launches = 0;
  for (const HostCall& c : trace.calls) launches += c.kind == HostKind::launch || c.kind == HostKind::graph_launch;
  if (import.events == 0) {
    import.notes.push_back("the file holds no events");
    return;
  }
  std::string cause = "the trace was taken without GPU activity, or of a program that uses no GPU";
  if (launches)
    cause = fmt::format(
        "GPU activity missing: {} launched, but the profiler recorded none "
        "(CUPTI or ROCm tracing was unavailable, or was busy with another profiler)",
        launches == 1 ? "1 kernel was" : fmt::format("{} kernels were", launches));
  else if (import.categories.contains("cuda_profiler_range") || import.categories.contains("hardware_counters"))
    cause = "the profiler ran in counter mode (CUPTI range profiler), which records no kernels";
  else if (import.categories.contains("mtia_ccp_events") || import.categories.contains("mtia_runtime"))
    cause = "the device is an MTIA accelerator, whose events are not GPU kernels";
  else if (import.phases.size() == 1 && import.phases.contains('M'))
    cause = "the file holds metadata only";
  else if (import.categories.contains("cpu_op") || import.categories.contains("python_function"))
    cause = "GPU activity missing: the profiler recorded the CPU side only (add ProfilerActivity.CUDA)";
  import.notes.push_back(fmt::format("no GPU work among {}; categories seen: {}. Likely cause: {}",
                                     counted(static_cast<int64_t>(import.events), "event"), categories_seen(import),
                                     cause));
}

void check_graphs(Trace& trace) {
  int64_t graph_launches = 0;
  for (const HostCall& c : trace.calls) graph_launches += c.kind == HostKind::graph_launch;
  int64_t kernels = 0;
  for (const GpuEvent& e : trace.events) kernels += e.kind == WorkKind::kernel;
  if (graph_launches > 0 && kernels > 0 && kernels < 4 * graph_launches)
    trace.import.notes.push_back(
        fmt::format("{} but only {}: kernels inside graphs are probably not recorded (for "
                    "Nsight Systems use "
                    "--cuda-graph-trace=node)",
                    counted(graph_launches, "graph launch", "graph launches"), counted(kernels, "kernel")));
}

/// Of the body of a while node, profilers record the first iteration only. What tells of such nodes are the kernels
/// that set their conditions (XLA's, and those named after the runtime function).
void check_conditional_graphs(Trace& trace) {
  std::vector<bool> kernels(trace.names.size(), false);
  for (const GpuEvent& e : trace.events) kernels[index(e.name)] = true;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (!kernels[i]) continue;
    const std::string_view name = trace.names.text(static_cast<NameId>(i));
    for (const std::string_view sign :
         {"SetWhileCondition", "SetIfCondition", "SetCaseCondition", "GraphSetConditional", "set_conditional"})
      if (name.find(sign) != std::string_view::npos) {
        trace.import.notes.push_back(
            "the program uses conditional graph nodes: profilers record only the first iteration of a loop in a graph, "
            "so calls and time of its kernels may be too low");
        return;
      }
  }
}

/// Large files that are mostly Python frames: what to record instead.
void advise(Trace& trace) {
  uint64_t stacks = 0;
  if (const auto found = trace.import.categories.find("python_function"); found != trace.import.categories.end())
    stacks = found->second;
  if (trace.import.text_bytes < (uint64_t{200} << 20) || stacks * 2 < trace.import.events) return;
  trace.import.notes.push_back(
      fmt::format("{} of {} events are Python frames: recording without with_stack, and fewer steps, gives a file a "
                  "fraction as large",
                  stacks, trace.import.events));
}

}  // namespace

std::optional<int> rank_of_name(std::string_view file_name) {
  for (const std::string_view word : {"rank", "Rank", "RANK", "worker", "TP", "tp"})
    if (const auto n = number_after(file_name, word)) return n;
  return {};
}

void finish_trace(Trace& trace) {
  drop_impossible(trace);
  for (const GpuEvent& e : trace.events) trace.import.zero_duration += e.duration == 0;
  sort_all(trace);
  find_ranks(trace);
  advise(trace);
  if (trace.events.empty()) {
    explain_absence(trace);
    return;
  }
  match_launches(trace);
  check_graphs(trace);
  check_conditional_graphs(trace);
}

}  // namespace fathom::trace
