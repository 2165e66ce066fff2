#include "base/recorder.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace fathom {
namespace {

std::vector<SpanRecord> all(const Recorder& recorder) {
  std::vector<SpanRecord> out;
  recorder.for_each([&](const SpanRecord& r) { out.push_back(r); });
  return out;
}

TEST(Recorder, KeepsWhatASpanWasGiven) {
  Recorder recorder;
  const int64_t before = Recorder::now();
  {
    Span span(&recorder, "linear_fp8", 100, 200, {1, 2, 3});
    span.set_cost(101, 201);
  }
  const auto spans = all(recorder);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_STREQ(spans[0].name, "linear_fp8");
  EXPECT_STREQ(spans[0].category, kOpCategory);
  EXPECT_EQ(spans[0].bytes, 101);
  EXPECT_EQ(spans[0].flops, 201);
  EXPECT_EQ(spans[0].shape, (std::array<int64_t, 4>{1, 2, 3, 0}));
  EXPECT_EQ(spans[0].step, 0);
  EXPECT_EQ(spans[0].thread, Recorder::this_thread());
  EXPECT_GE(spans[0].start_ns, before);
  EXPECT_GE(spans[0].end_ns, spans[0].start_ns);
}

TEST(Recorder, NullRecorderRecordsNothingAndDoesNotCrash) {
  Span span(nullptr, "op", 1, 2);
  span.set_cost(3, 4);
  StepSpan step(nullptr, 1, 0);
}

TEST(Recorder, SpansCarryTheStepTheyRanIn) {
  Recorder recorder;
  for (int i = 0; i < 2; ++i) {
    StepSpan step(&recorder, 12, i);
    Span op(&recorder, "embed");
  }
  { Span op(&recorder, "sample"); }
  const auto spans = all(recorder);
  ASSERT_EQ(spans.size(), 5u);  // each op ends before its step
  EXPECT_EQ(spans[0].step, 1);
  EXPECT_STREQ(spans[1].category, kStepCategory);
  EXPECT_EQ(spans[1].shape[0], 12);
  EXPECT_EQ(spans[2].step, 2);
  EXPECT_EQ(spans[3].shape[1], 1);
  EXPECT_EQ(spans[4].step, 0);
}

TEST(Recorder, CountsButDoesNotStoreSpansPastItsLimit) {
  Recorder recorder(5000);  // more than one chunk
  for (int i = 0; i < 7000; ++i) Span span(&recorder, "op", i);
  EXPECT_EQ(recorder.stored(), 5000u);
  EXPECT_EQ(recorder.dropped(), 2000u);
  const auto spans = all(recorder);
  ASSERT_EQ(spans.size(), 5000u);
  EXPECT_EQ(spans.back().bytes, 4999);
}

TEST(Recorder, LosesNothingWhenManyThreadsAddAtOnce) {
  Recorder recorder(100000);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&recorder, t] {
        recorder.name_thread("worker " + std::to_string(t));
        for (int i = 0; i < 10000; ++i) Span span(&recorder, "op", t * 10000 + i);
      });
    }
    for (int i = 0; i < 10; ++i) all(recorder);  // reading while others write
  }
  std::set<int64_t> seen;
  std::set<int32_t> ids;
  for (const auto& r : all(recorder)) seen.insert(r.bytes), ids.insert(r.thread);
  EXPECT_EQ(seen.size(), 40000u);
  EXPECT_EQ(ids.size(), 4u);
  EXPECT_EQ(recorder.dropped(), 0u);
  EXPECT_EQ(recorder.thread_names().size(), 4u);
}

}  // namespace
}  // namespace fathom
