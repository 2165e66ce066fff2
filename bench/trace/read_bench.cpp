// Throughput of the reader on text in memory: plain kernels, and events that the analysis only counts.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <span>
#include <string>

#include "trace/analysis.h"
#include "trace/reader.h"

namespace fathom::trace {
namespace {

std::string events(int n, bool kernels) {
  std::string out = "{\"schemaVersion\": 1, \"traceEvents\": [";
  for (int i = 0; i < n; ++i)
    out += fmt::format(
        "{}\n  {{\n    \"ph\": \"X\", \"cat\": \"{}\", \"name\": \"void deep_gemm::fp8_gemm_kernel<{}u, "
        "7168u>(float*)\", "
        "\"pid\": 0, \"tid\": 7,\n    \"ts\": {}.125, \"dur\": 4.250,\n    \"args\": {{\"External id\": {}, "
        "\"device\": 0, "
        "\"stream\": 7, \"correlation\": {}, \"grid\": [132, 1, 1], \"block\": [384, 1, 1], \"registers per thread\": "
        "168, "
        "\"shared memory\": 231424}}\n  }}",
        i ? "," : "", kernels ? "kernel" : "cpu_op", i % 40, 1'000'000 + 5 * i, i, i);
  return out + "\n]}\n";
}

void read(benchmark::State& state, bool kernels) {
  const std::string text = events(100'000, kernels);
  for (auto _ : state)
    benchmark::DoNotOptimize(read_trace_bytes(std::as_bytes(std::span(text)), "bench.json").events.size());
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}

void analyse_kernels(benchmark::State& state) {
  const std::string text = events(100'000, true);
  const Trace trace = read_trace_bytes(std::as_bytes(std::span(text)), "bench.json");
  const CategoryRules rules = CategoryRules::built_in();
  for (auto _ : state) benchmark::DoNotOptimize(analyse(trace, rules).summary.busy);
  state.SetItemsProcessed(static_cast<int64_t>(trace.events.size()) * state.iterations());
}

BENCHMARK_CAPTURE(read, kernels, true)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(read, cpu_ops, false)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(analyse_kernels)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fathom::trace
