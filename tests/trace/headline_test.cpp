// The first sentence of a report, and the ceilings it speaks of.
#include <gtest/gtest.h>

#include "make_trace.h"
#include "trace/analysis.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

Analysis analysed(const Trace& t) {
  return analyse(t, CategoryRules::built_in());
}

TEST(Ceilings, WhatOtherStreamsStillHaveToDoStays) {
  // Copies in both directions side by side: without one direction the other still takes its 80 us.
  const Trace t = read_text(
      trace_text({event_text("gpu_memcpy", "Memcpy HtoD", 1, 100, R"({"device": 0, "stream": 7})"),
                  event_text("gpu_memcpy", "Memcpy DtoH", 11, 80, R"({"device": 0, "stream": 8})", "0", "8")}));
  const Analysis a = analysed(t);
  EXPECT_NEAR(a.ranking.rows[0].ceiling, 100.0 / 80, 1e-9);
  EXPECT_NE(headline(a).find("the most that fixing it can give is 1.25x"), std::string::npos) << headline(a);
  const Trace one = read_text(trace_text({kernel_text("a", 1, 75), kernel_text("b", 76, 25)}));
  EXPECT_NEAR(analysed(one).ranking.rows[0].ceiling, 4, 1e-9);
  EXPECT_EQ(a.diagnosis.category_speedup.size(), a.categories.rows.size());
}

TEST(Headline, WaitingThatCostsMoreThanTheFirstKernelIsTheAnswer) {
  std::vector<std::string> events;
  for (int i = 0; i < 20; ++i) {
    events.push_back(event_text("cuda_runtime", "cudaLaunchKernel", 100 + 50 * i, 5,
                                fmt::format("{{\"correlation\": {}}}", i + 1), "99", "1"));
    events.push_back(kernel_text("k", 110 + 50 * i, 10, fmt::format("{{\"correlation\": {}}}", i + 1)));
  }
  const Trace t = read_text(trace_text(events));
  const std::string text = headline(analysed(t));
  EXPECT_TRUE(text.starts_with("The GPU waits 760.0 us (79.2 %) for 19 launches that came too late")) << text;
}

TEST(Headline, ALongPauseIsToldApart) {
  const Trace t = read_text(
      trace_text({kernel_text("first", 1, 4), kernel_text("a", 463'000, 5000), kernel_text("b", 468'500, 4500)}));
  const std::string text = headline(analysed(t));
  EXPECT_NE(text.find("The GPU is busy 95.0 % of 10.0 ms, not counting 463.0 ms of long pauses."), std::string::npos)
      << text;
}

}  // namespace
}  // namespace fathom::trace
