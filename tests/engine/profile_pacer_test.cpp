// How often the steps of a profile are recorded: simulated steps that take longer when they are.
#include "engine/profile_pacer.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace fathom::test {
namespace {

struct Simulation {
  double step = 6.4e-3, cost = 0.7e-3, turning = 30e-6, first = 20e-3;
  double noise = 0.01;  // of a step, standard deviation

  ProfilePacer pacer;
  int64_t recorded = 0, longest_in_a_row = 0;
  double with = 0, without = 0;  // all steps but the first

  void run(
      int64_t steps, const std::function<int64_t(int64_t)>& size_of = [](int64_t) { return 1; }) {
    std::mt19937 random(3);
    std::normal_distribution<double> wobble(0, noise);
    bool on = true;
    int64_t in_a_row = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const double own = step * (1 + wobble(random));
      double took = own + (on ? cost : 0) + (i == 0 ? first : 0);
      recorded += on, in_a_row = on ? in_a_row + 1 : 0;
      longest_in_a_row = std::max(longest_in_a_row, in_a_row);
      const bool next = pacer.step_ended(on, size_of(i), took);
      if (next != on) pacer.switched(turning), took += turning;
      on = next;
      if (i > 0) with += took, without += own;
    }
  }
  double overhead() const { return with / without - 1; }
};

TEST(ProfilePacer, SpendsLessThanThreeHundredthsOfTheTimeAndMostOfWhatItMay) {
  Simulation s;
  s.run(400);
  EXPECT_LT(s.overhead(), 0.03);
  EXPECT_GT(s.overhead(), 0.018);
  EXPECT_GT(s.recorded, 60);
  const RecordingCost cost = s.pacer.cost();
  EXPECT_EQ(cost.steps, 400);
  EXPECT_EQ(cost.recorded, s.recorded);
  EXPECT_NEAR(cost.overhead, s.with - s.without + s.first + s.cost, 0.15 * cost.overhead);
  EXPECT_NEAR(cost.seconds, s.without + s.step, 0.01 * cost.seconds);
}

TEST(ProfilePacer, RecordsAlmostEveryStepWhereThatIsCheapAndKeepsSomeToCompareWith) {
  Simulation s;
  s.step = 37e-3, s.cost = 0.3e-3;
  s.run(200);
  EXPECT_GT(s.recorded, 120);
  EXPECT_LT(s.recorded, 195);
  EXPECT_LE(s.longest_in_a_row, 16);
  EXPECT_LT(s.overhead(), 0.03);
}

TEST(ProfilePacer, AShortProfileHasRecordedStepsToo) {
  Simulation s;
  s.run(1);
  EXPECT_EQ(s.recorded, 1);
  EXPECT_EQ(s.pacer.cost().seconds, 0);  // nothing to compare it with
  Simulation longer;
  longer.run(48);
  EXPECT_GE(longer.recorded, 6);
}

TEST(ProfilePacer, StepsThatCostMuchAreRecordedRarely) {
  Simulation s;
  s.cost = 20e-3;
  s.run(2000);
  EXPECT_GE(s.recorded, 8);
  EXPECT_LT(s.overhead(), 0.035);  // the second recorded step comes before the cost is known
}

TEST(ProfilePacer, StepsWithoutTheirLikeAreJudgedByWhatOthersCost) {
  Simulation s;
  s.run(600, [](int64_t i) { return i / 7 % 3 == 0 ? 0 : i / 100 + 1; });  // prompts between, and batches that change
  EXPECT_LT(s.overhead(), 0.03);
  EXPECT_GT(s.recorded, 50);
}

}  // namespace
}  // namespace fathom::test
