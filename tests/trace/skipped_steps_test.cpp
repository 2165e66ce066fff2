// Profiles that recorded some of the steps only.
#include "trace/skipped_steps.h"

#include <gtest/gtest.h>

#include "make_trace.h"
#include "trace/analysis.h"

namespace fathom::trace {
namespace {

std::string annotation(const std::string& name, double start, double duration) {
  return event_text("user_annotation", name, start, duration, "", "9", "9");
}

/// Steps of fathom's own profile at these starts, in microseconds: each a launch and three kernels, 100 of 1000 idle.
std::string own_profile(const std::vector<double>& starts, std::vector<std::string> events) {
  for (size_t i = 0; i < starts.size(); ++i) {
    const std::string call = fmt::format(R"({{"correlation": {}}})", i + 1);
    events.push_back(annotation(fmt::format("step {}: decode B=1", i + 1), starts[i], 1000));
    events.push_back(event_text("cuda_runtime", "cudaGraphLaunch_v10000", starts[i], 90, call, "9", "9"));
    for (int k = 0; k < 3; ++k)
      events.push_back(kernel_text(k == 2 ? "head" : "experts", starts[i] + 100 + 300 * k, 300, call));
  }
  return trace_text(events, R"("otherData": {"producer": "fathom"}, )");
}

TEST(SkippedSteps, StretchesThatAProfileLeftOutAreNeitherGapsNorIdleTime) {
  const Trace whole = read_text(own_profile({0, 1000, 2000, 3000}, {}));
  const Trace cut = read_text(own_profile({0, 1000, 6000, 8000}, {annotation("4 steps not recorded", 2000, 4000),
                                                                  annotation("1 step not recorded", 7000, 1000)}));
  for (const Trace* t : {&whole, &cut}) {
    const Analysis a = analyse(*t, CategoryRules::built_in());
    ASSERT_EQ(a.steps.steps.size(), 4u);
    EXPECT_EQ(a.steps.median, 900'000);
    EXPECT_EQ(a.steps.between, 300'000);
    EXPECT_EQ(a.summary.devices.at(0).idle(), 300'000);
    EXPECT_EQ(a.summary.devices.at(0).span(), 3'900'000);
    EXPECT_EQ(t->annotations.size(), 4u);
  }
  ASSERT_EQ(cut.import.notes.size(), whole.import.notes.size() + 1);
  EXPECT_NE(cut.import.notes.front().find("5 steps were not recorded"), std::string::npos) << cut.import.notes.front();
}

TEST(SkippedSteps, OddStretchesDoNoHarm) {
  const Trace t = read_text(own_profile(
      {0, 1000}, {annotation("3 steps not recorded", 500, 5000), annotation("9 steps not recorded", 200, 1000),
                  annotation("99999999999999999999 steps not recorded", 0, 10),
                  annotation("-1 steps not recorded", 0, 10), annotation("2 steps not recorded", 1500, 0)}));
  const Analysis a = analyse(t, CategoryRules::built_in());
  for (const GpuEvent& e : t.events) EXPECT_GE(e.duration, 0);
  EXPECT_GE(a.summary.devices.at(0).idle(), 0);
  EXPECT_EQ(t.annotations.size(), 4u);  // two that say something else
}

TEST(SkippedSteps, OtherProducersMayCallTheirAnnotationsWhatTheyLike) {
  const Trace t = read_text(
      trace_text({kernel_text("k", 0, 10), annotation("4 steps not recorded", 10, 80), kernel_text("k", 90, 10)}));
  EXPECT_EQ(t.annotations.size(), 1u);
  EXPECT_EQ(t.events.at(1).start - t.events.at(0).start, 90'000);
}

}  // namespace
}  // namespace fathom::trace
