// Kernels of a trace given to the ops that launched them.
#include "model/kernel_spans.h"

#include <gtest/gtest.h>

namespace fathom::test {
namespace {

ops::KernelRun kernel(int64_t start, uint64_t correlation, uint64_t node) {
  ops::KernelRun run;
  run.span.name = run.span.kernel = "function";
  run.span.start_ns = start, run.span.end_ns = start + 5, run.span.correlation = correlation;
  run.node = node;
  return run;
}

TEST(KernelSpans, KernelsOfReplayedStepsGetTheNamesOfTheirOps) {
  const auto ops = std::make_shared<const std::vector<OpMark>>(
      std::vector<OpMark>{{"embed", 10, 0, 1}, {"experts", 700, 9, 2}, {"nothing", 1, 1, 0}, {"head", 50, 3, 1}});
  std::vector<ops::KernelRun> runs = {kernel(0, 5, 0)};  // launched by itself
  for (const uint64_t node : {1, 3, 2, 4}) runs.push_back(kernel(9 + static_cast<int64_t>(runs.size()), 8, node));
  for (const uint64_t node : {1, 2, 4, 3}) runs.push_back(kernel(19 + static_cast<int64_t>(runs.size()), 9, node));
  const auto spans = name_kernels(runs, {{ops, 2}, {ops, 3}});
  ASSERT_EQ(spans.size(), 9u);
  EXPECT_EQ(spans[0].name, "function");
  EXPECT_EQ(spans[0].step, 0);
  const char* names[] = {"embed", "experts", "experts", "head", "embed", "experts", "head", "experts"};
  const int64_t bytes[] = {10, 0, 700, 50, 10, 700, 50, 0};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(spans[1 + i].name, names[i]);
    EXPECT_EQ(spans[1 + i].bytes, bytes[i]);
    EXPECT_EQ(spans[1 + i].kernel, "function");
    EXPECT_EQ(spans[1 + i].step, i < 4 ? 2 : 3);
  }
}

TEST(KernelSpans, KernelsLaunchedOpByOpGetTheNamesOfTheOpsThatLaunchedThem) {
  const auto call = [](int64_t start, uint64_t correlation, int32_t thread) {
    ops::KernelRun run = kernel(start, correlation, 0);
    run.span.category = kRuntimeCategory, run.span.kernel = "", run.span.stream = thread;
    return run;
  };
  const auto launched = [](int64_t start, uint64_t correlation, const char* function) {
    ops::KernelRun run = kernel(start, correlation, 0);
    run.span.kernel = function;
    return run;
  };
  std::vector<SpanRecord> ops(2);
  ops[0].name = "experts", ops[0].start_ns = 100, ops[0].end_ns = 120, ops[0].thread = 7, ops[0].step = 2,
  ops[0].bytes = 9;
  ops[1].name = "embed", ops[1].start_ns = 10, ops[1].end_ns = 20, ops[1].thread = 7, ops[1].step = 2, ops[1].bytes = 4;
  const auto spans = name_kernels(
      {call(12, 1, 7), call(101, 2, 7), call(105, 3, 7), call(106, 4, 8), call(50, 5, 7), launched(300, 1, "rows"),
       launched(400, 2, "up"), launched(500, 3, "down"), launched(510, 4, "up"), launched(600, 5, "other")},
      {}, ops);
  const char* names[] = {"embed", "experts", "experts", "experts", "function"};
  const int64_t bytes[] = {4, 9, 0, 0, 0};  // once for each op
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(spans[5 + i].name, names[i]) << i;
    EXPECT_EQ(spans[5 + i].bytes, bytes[i]) << i;
    EXPECT_EQ(spans[5 + i].step, i < 3 ? 2 : 0) << i;
  }
}

TEST(KernelSpans, AStepWithAnotherNumberOfKernelsKeepsTheFunctionsNames) {
  const auto ops = std::make_shared<const std::vector<OpMark>>(std::vector<OpMark>{{"embed", 10, 0, 1}});
  const auto spans = name_kernels({kernel(0, 8, 1), kernel(1, 8, 2), kernel(9, 9, 1)}, {{ops, 1}, {ops, 2}});
  EXPECT_EQ(spans[0].name, "function");
  EXPECT_EQ(spans[1].name, "function");
  EXPECT_EQ(spans[0].step, 1);
  EXPECT_EQ(spans[2].step, 2);
  EXPECT_EQ(spans[2].name, "embed");
}

TEST(KernelSpans, EachOfSeveralGpusReplaysEveryStepAndOnlyOneChooses) {
  const auto ops = std::make_shared<const std::vector<OpMark>>(
      std::vector<OpMark>{{"embed", 10, 0, 1}, {"head", 50, 3, 1}, {"choose", 5, 0, 2}});
  std::vector<ops::KernelRun> runs;
  for (const uint64_t step : {0, 1}) {  // the calls of the ranks come in any order
    for (const uint64_t node : {1, 2}) runs.push_back(kernel(static_cast<int64_t>(100 * step), 8 + 2 * step, node));
    for (auto run = runs.end() - 2; run != runs.end(); ++run) run->span.device = 1;
    for (const uint64_t node : {1, 2, 3, 4})
      runs.push_back(kernel(static_cast<int64_t>(100 * step), 9 + 2 * step, node));
  }
  const auto spans = name_kernels(runs, {{ops, 1}, {ops, 2}});
  ASSERT_EQ(spans.size(), 12u);
  const char* names[] = {"embed", "head", "embed", "head", "choose", "choose"};
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].name, names[i % 6]);
    EXPECT_EQ(spans[i].step, i < 6 ? 1 : 2);
    EXPECT_EQ(spans[i].device, i % 6 < 2 ? 1 : 0);
  }
}

}  // namespace
}  // namespace fathom::test
