// What users of other trace tools reported, where no other test has it: each is the smallest file that shows the case.
// (Damaged text: reader_test.cpp and the files of derived/; clock defects, overlap, names: analysis_test.cpp; exports
// of Nsight Systems: nsys_test.cpp; whole captures: truth_test.cpp.)
#include <gtest/gtest.h>

#include "base/error.h"
#include "make_trace.h"
#include "trace/analysis.h"
#include "trace/finish.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

std::string notes(const Trace& t) {
  std::string out;
  for (const std::string& n : import_sentences(t)) out += n + "\n";
  return out;
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::string launch(int correlation, const char* name = "cudaGraphLaunch") {
  return event_text("cuda_runtime", name, correlation, 1, fmt::format("{{\"correlation\": {}}}", correlation));
}

TEST(FieldReports, GraphLaunchesWithFewKernelsAreTold) {
  const Trace t =
      read_text(trace_text({launch(1), launch(2), launch(3), kernel_text("k", 10, 5, R"({"correlation": 1})")}));
  EXPECT_TRUE(has(notes(t), "3 graph launches but only 1 kernel: ")) << notes(t);
}

TEST(FieldReports, LoopsInsideGraphsAreTold) {
  const Trace t = read_text(trace_text({kernel_text("stream_executor::cuda::SetWhileConditionKernel", 1, 2)}));
  EXPECT_TRUE(has(notes(t), "conditional graph nodes")) << notes(t);
  EXPECT_FALSE(has(notes(read_text(trace_text({kernel_text("conditional", 1, 2)}))), "conditional graph nodes"));
}

TEST(FieldReports, OneHugeGraphLaunchOnTheHostIsNoGpuTime) {
  const Trace t =
      read_text(trace_text({event_text("cuda_runtime", "hipGraphLaunch", 0, 97'000, R"({"correlation": 5})"),
                            kernel_text("k", 10, 5, R"({"correlation": 5})")}));
  EXPECT_EQ(summarise(t).total, 5000);
}

TEST(FieldReports, EveryKindOfEventMayBeAbsent) {
  for (const char* category : {"kernel", "gpu_memcpy", "gpu_memset"}) {
    const Trace t = read_text(trace_text({event_text(category, "x", 1, 2)}));
    EXPECT_EQ(summarise(t).total, 2000) << category;
    EXPECT_FALSE(text_report(analyse(t, CategoryRules::built_in()), {}).empty());
  }
}

TEST(FieldReports, CounterModeIsNamed) {
  const Trace t = read_text(trace_text({event_text("cuda_profiler_range", "__range__", 1, 2)}));
  EXPECT_TRUE(has(notes(t), "counter mode")) << notes(t);
}

TEST(FieldReports, TracesOfTheCpuAloneSayWhatIsMissing) {
  const Trace t =
      read_text(trace_text({event_text("cpu_op", "aten::mm", 1, 2), event_text("cpu_op", "aten::add", 4, 2)}));
  EXPECT_TRUE(has(notes(t), "cpu_op (2)")) << notes(t);
  EXPECT_TRUE(has(notes(t), "ProfilerActivity.CUDA")) << notes(t);
}

TEST(FieldReports, KernelsWhoseLaunchWasDroppedAreCounted) {
  const Trace t = read_text(trace_text({launch(1, "cudaLaunchKernel"), kernel_text("a", 10, 5, R"({"correlation": 1})"),
                                        kernel_text("b", 20, 5, R"({"correlation": 77})")}));
  EXPECT_EQ(t.import.work_without_launch, 1u);
  EXPECT_EQ(t.import.launches_without_work, 0u);
}

TEST(FieldReports, FlowsAndCountersNeverDisturbKernels) {
  const Trace t = read_text(trace_text(
      {kernel_text("k", 1, 2), R"({"ph": "f", "id": 9, "bp": "e", "ts": 1, "cat": "ac2g", "name": "ac2g"})",
       R"({"ph": "s", "ts": "nonsense", "cat": "ac2g"})", R"({"ph": "C", "name": "power", "args": {"W": 700}})",
       R"({"ph": "b", "cat": "async"})", R"({"ph": "?", "name": "new phase"})"}));
  EXPECT_EQ(t.events.size(), 1u);
  EXPECT_FALSE(t.import.partial);
  EXPECT_EQ(t.import.unknown_phases, 1u);
}

TEST(FieldReports, SlicesOfOneStreamMayOverlapWithoutLoss) {
  const Trace t = read_text(trace_text({kernel_text("a", 1, 10), kernel_text("b", 5, 10), kernel_text("c", 5, 2)}));
  EXPECT_EQ(summarise(t).total, 22'000);
  EXPECT_EQ(summarise(t).busy, 14'000);
  EXPECT_EQ(notes(t), "");  // no tree is built, so nothing is said about nesting
}

TEST(FieldReports, ImpossibleDurationsAreCountedNotAdded) {
  const Trace t = read_text(trace_text({kernel_text("a", 1, -10), kernel_text("b", 5, 10), kernel_text("c", 0, 0)}));
  EXPECT_EQ(summarise(t).total, 10'000);
  EXPECT_EQ(t.import.negative_duration, 1u);
  EXPECT_EQ(t.import.zero_time, 1u);
  EXPECT_TRUE(has(notes(t), "impossible duration")) << notes(t);
}

TEST(FieldReports, AListMayBeginWithAComma) {
  const Trace t = read_text(R"([,{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2},,])");
  EXPECT_EQ(t.events.size(), 1u);
  EXPECT_FALSE(t.import.partial);
}

TEST(FieldReports, TwoGpusMayShareAStreamNumber) {
  const Trace t = read_text(trace_text({kernel_text("k", 1, 10, R"({"device": 0, "stream": 7})"),
                                        event_text("kernel", "k", 1, 10, R"({"device": 1, "stream": 7})", "1")}));
  const Summary s = summarise(t);
  ASSERT_EQ(s.devices.size(), 2u);
  for (const DeviceSummary& d : s.devices) EXPECT_LE(d.busy, d.span());
}

TEST(FieldReports, StacksThatFillAFileAreAdvisedAgainst) {
  Trace t;
  t.import.text_bytes = uint64_t{1} << 30;
  t.import.events = 100;
  t.import.categories["python_function"] = 90;
  finish_trace(t);
  EXPECT_TRUE(has(notes(t), "recording without with_stack")) << notes(t);
}

TEST(FieldReports, ArchivesAreNamed) {
  std::string tar(512, '\0');
  tar.replace(0, 10, "trace.json");
  tar.replace(257, 5, "ustar");
  try {
    read_text(tar, "x.json");
    FAIL() << "a tar archive was read";
  } catch (const Error& e) {
    EXPECT_TRUE(has(e.what(), "is a tar archive")) << e.what();
  }
}

TEST(FieldReports, APieceOfWorkTakesFortyBytesAndItsTextNone) {
  EXPECT_LE(sizeof(GpuEvent), 40u);
  std::vector<std::string> events;
  for (int i = 0; i < 1000; ++i)
    events.push_back(kernel_text("the same long name of a kernel<128, 64>", 10 * i + 1, 5));
  const Trace t = read_text(trace_text(events));
  EXPECT_EQ(t.events.size(), 1000u);
  EXPECT_LT(t.names.size(), 10u);
}

TEST(FieldReports, ClassificationCanBeSeen) {
  const CategoryRules rules = CategoryRules::built_in();
  EXPECT_TRUE(
      has(rules.reason("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", WorkKind::kernel),
          "nccl"));
  const Trace t = read_text(trace_text({kernel_text("xyzzy", 1, 10)}));
  EXPECT_TRUE(has(text_report(analyse(t, rules), {}), "Not matched by any rule (other): 100.0 %"));
}

}  // namespace
}  // namespace fathom::trace
