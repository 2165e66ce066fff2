// How often the steps of a profile are recorded: simulated steps that take longer when they are.
#include "engine/profile_pacer.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace fathom::test {
namespace {

struct Simulation {
  double step = 6.4e-3, cost = 0.95e-3, turning = 15e-3, first = 4e-3;
  double noise = 0.01;  // of a step, standard deviation

  ProfilePacer pacer;
  int64_t recorded = 0, longest = 0;
  double with = 0, without = 0;

  void run(
      int64_t steps, const std::function<int64_t(int64_t)>& size_of = [](int64_t) { return 1; }) {
    std::mt19937 random(3);
    std::normal_distribution<double> wobble(0, noise);
    bool on = true;
    int64_t in_a_row = 0;
    const auto turn = [&] { pacer.switched(turning), with += turning; };
    turn();
    for (int64_t i = 0; i < steps; ++i) {
      const double own = step * (1 + wobble(random)), took = own + (on ? cost : 0) + (i == 0 ? first : 0);
      recorded += on, in_a_row = on ? in_a_row + 1 : 0;
      longest = std::max(longest, in_a_row);
      with += took, without += own;
      const bool next = pacer.step_ended(on, size_of(i), took);
      if (next != on) turn();
      on = next;
    }
  }
  double overhead() const { return with / without - 1; }
};

TEST(ProfilePacer, SpendsLessThanThreeHundredthsOfTheTimeAndMostOfWhatItMay) {
  Simulation s;
  s.run(4000);
  EXPECT_LT(s.overhead(), 0.027);
  EXPECT_GT(s.overhead(), 0.02);
  EXPECT_GE(s.recorded, 100);
  const RecordingCost cost = s.pacer.cost();
  EXPECT_EQ(cost.steps, 4000);
  EXPECT_EQ(cost.recorded, s.recorded);
  EXPECT_NEAR(cost.overhead, s.with - s.without, 0.1 * cost.overhead);
  EXPECT_NEAR(cost.seconds, s.without, 0.01 * cost.seconds);
}

TEST(ProfilePacer, RecordsManyStepsWhereThatIsCheapAndKeepsSomeToCompareWith) {
  Simulation s;
  s.step = 37e-3, s.cost = 0.3e-3;
  s.run(1000);
  EXPECT_GT(s.recorded, 250);
  EXPECT_LT(s.recorded, 980);
  EXPECT_LE(s.longest, 40);
  EXPECT_LT(s.overhead(), 0.027);
}

TEST(ProfilePacer, AShortProfileHasRecordedStepsToo) {
  Simulation s;
  s.run(5);
  EXPECT_EQ(s.recorded, 5);
  EXPECT_EQ(s.pacer.cost().seconds, 0);  // nothing to compare them with
  Simulation longer;
  longer.run(48);
  EXPECT_EQ(longer.recorded, 10);
  EXPECT_GT(longer.pacer.cost().share(), 0.05);  // beginning and ending it weigh more than in a long one
}

TEST(ProfilePacer, StepsThatCostMuchAreRecordedRarely) {
  Simulation s;
  s.cost = 20e-3;
  s.run(10000);
  EXPECT_GE(s.recorded, 20);
  EXPECT_LT(s.overhead(), 0.03);
}

TEST(ProfilePacer, StepsWithoutTheirLikeAreJudgedByWhatOthersCost) {
  Simulation s;
  s.run(6000, [](int64_t i) { return i / 7 % 3 == 0 ? 0 : i / 1000 + 1; });  // prompts between; batches that change
  EXPECT_LT(s.overhead(), 0.03);
  EXPECT_GT(s.recorded, 100);
}

}  // namespace
}  // namespace fathom::test
