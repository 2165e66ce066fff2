#include "profile/summary.h"

#include <gtest/gtest.h>

#include <sstream>

namespace fathom::profile {
namespace {

SpanRecord span(const char* name, int64_t start, int64_t end, int64_t bytes = 0, int64_t flops = 0,
                int32_t thread = 1) {
  SpanRecord r;
  r.name = name;
  r.start_ns = start;
  r.end_ns = end;
  r.bytes = bytes;
  r.flops = flops;
  r.thread = thread;
  return r;
}

const OpTotal& row(const Summary& summary, const std::string& name) {
  for (const auto& r : summary.rows)
    if (r.name == name) return r;
  throw std::logic_error("no row " + name);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(ProfileSummary, AddsUpSelfTimesSoThatRowsMakeTheWhole) {
  Recorder recorder;
  recorder.add(span("inner", 110, 130));  // spans are stored as they end: inner first
  recorder.add(span("middle", 105, 150));
  recorder.add(span("inner", 160, 170));
  SpanRecord step = span("step", 100, 200);
  step.category = kStepCategory;
  step.step = 1;
  recorder.add(step);
  const Summary summary = summarize(recorder);
  EXPECT_EQ(summary.covered_ns, 100);
  EXPECT_EQ(summary.steps, 1);
  EXPECT_EQ(row(summary, "inner").self_ns, 30);
  EXPECT_EQ(row(summary, "inner").calls, 2);
  EXPECT_EQ(row(summary, "middle").self_ns, 25);
  EXPECT_EQ(row(summary, "middle").total_ns, 45);
  EXPECT_EQ(row(summary, "(between ops)").self_ns, 45);
  EXPECT_EQ(summary.rows[0].name, "(between ops)");  // ranked by self time
}

TEST(ProfileSummary, DoesNotNestSpansOfDifferentThreads) {
  Recorder recorder;
  recorder.add(span("a", 0, 100, 0, 0, 1));
  recorder.add(span("b", 10, 20, 0, 0, 2));
  const Summary summary = summarize(recorder);
  EXPECT_EQ(row(summary, "a").self_ns, 100);
  EXPECT_EQ(row(summary, "b").self_ns, 10);
}

TEST(ProfileSummary, BytesPerNanosecondAreGigabytesPerSecond) {
  Recorder recorder;
  recorder.add(span("op", 0, 1000, 8000, 16000));
  recorder.add(span("op", 1000, 2000, 8000, 16000));
  const Summary summary = summarize(recorder);
  EXPECT_DOUBLE_EQ(row(summary, "op").gigabytes_per_second(), 8.0);
  EXPECT_DOUBLE_EQ(row(summary, "op").gigaflops_per_second(), 16.0);
}

TEST(ProfileSummary, OfNothingIsEmpty) {
  const Summary summary = summarize(Recorder());
  EXPECT_TRUE(summary.rows.empty());
  EXPECT_EQ(lines_of(format_table(summary, 80)).size(), 1u);  // the titles
}

TEST(ProfileTable, ShowsTimesSharesAndRates) {
  Recorder recorder;
  recorder.add(span("linear_fp8", 0, 3'000'000, 6'000'000, 9'000'000));
  recorder.add(span("route", 3'000'000, 4'000'000));
  const auto lines = lines_of(format_table(summarize(recorder), 120));
  ASSERT_EQ(lines.size(), 3u);
  for (const char* part : {"linear_fp8", "3.00 ms", "75.0 %", "5.72 MiB", "2.00", "3.00"})
    EXPECT_NE(lines[1].find(part), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("25.0 %"), std::string::npos);
}

TEST(ProfileTable, NeverExceedsTheWidthOfTheTerminal) {
  Recorder recorder;
  recorder.add(span("an_operation_with_quite_a_long_name", 0, 123'456'789, 1 << 30, 1 << 30));
  recorder.add(span("b", 0, 5, 1, 1, 2));
  for (int width = 40; width <= 130; ++width) {
    const auto lines = lines_of(format_table(summarize(recorder), width));
    for (const auto& line : lines) EXPECT_LE(line.size(), static_cast<size_t>(width)) << line;
    EXPECT_NE(lines[0].find("share"), std::string::npos);
  }
}

TEST(ProfileTable, AddsUpRowsPastTheLimit) {
  Recorder recorder;
  static const char* names[] = {"a", "b", "c", "d", "e"};
  for (int i = 0; i < 5; ++i) recorder.add(span(names[i], i * 100, i * 100 + 50 - i));
  const auto lines = lines_of(format_table(summarize(recorder), 80, 3));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1].substr(0, 2), "a ");
  EXPECT_EQ(lines[2].substr(0, 2), "b ");
  EXPECT_EQ(lines[3].substr(0, 8), "3 others");
  EXPECT_NE(lines[3].find("141 ns"), std::string::npos) << lines[3];
}

TEST(ProfileTable, SaysHowManySpansAreMissing) {
  Recorder recorder(1);
  for (int i = 0; i < 3; ++i) recorder.add(span("a", i, i + 1));
  const std::string text = format_table(summarize(recorder), 80);
  EXPECT_NE(text.find("2 more spans"), std::string::npos) << text;
}

TEST(ProfileSummary, GpusHaveRowsOfTheirOwn) {
  Recorder recorder;
  std::vector<DeviceSpan> spans;
  for (const int32_t device : {0, 1}) {
    for (const int64_t start : {100, 130}) {
      DeviceSpan s;
      s.name = "experts", s.start_ns = start + device, s.end_ns = start + device + 20, s.device = device, s.step = 1;
      spans.push_back(s);
    }
  }
  recorder.add_device_spans(spans);
  SpanRecord skipped = span(kSkippedCategory, 0, 1000);
  skipped.category = kSkippedCategory;
  recorder.add(skipped);
  recorder.set_cost({12, 2, 2.0, 0.05});
  const Summary summary = summarize(recorder);
  ASSERT_EQ(summary.rows.size(), 4u);
  int64_t busy[2] = {}, gaps[2] = {};
  for (const OpTotal& r : summary.rows) (r.name == "experts" ? busy : gaps)[r.device] += r.self_ns;
  for (const int device : {0, 1}) {
    EXPECT_EQ(busy[device], 40);
    EXPECT_EQ(gaps[device], 10);
  }
  const auto lines = lines_of(format_table(summary, 80));
  EXPECT_NE(lines[0].find("GPU"), std::string::npos);
  EXPECT_EQ(lines.back(), "2 of 12 steps, recorded so that all take hardly longer: 2.5 %");
}

TEST(ProfileSummary, StepsThatWereLeftOutAreNoTime) {
  Recorder recorder;
  SpanRecord skipped = span(kSkippedCategory, 0, 1000);
  skipped.category = kSkippedCategory;
  recorder.add(skipped);
  recorder.add(span("op", 2000, 2100));
  EXPECT_EQ(summarize(recorder).covered_ns, 100);
}

}  // namespace
}  // namespace fathom::profile
