// The choice of how many drafts to make, against simulated engines of known costs and drafts of known quality: time is
// counted, not measured, and all chances come from fixed seeds.
#include "engine/draft_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace fathom {
namespace {

constexpr int64_t kMost = 5, kStarts = 4;

/// What steps and rounds of proposals cost, in seconds, by tokens; by requests and depth.
struct Costs {
  const char* name;
  double (*step)(double tokens);
  double (*round)(double requests, double depth);
  double noise;  // times vary by this share
  bool sizes;    // steps cost what the next larger recorded size costs
};

constexpr int64_t kSizes[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

double recorded_size(double tokens) {
  for (const int64_t size : kSizes)
    if (static_cast<double>(size) >= tokens) return static_cast<double>(size);
  return tokens;
}

/// The full-size model with 160 experts on an H200: weights of the experts met, and a little for each token.
double large_gpu(double tokens) {
  const double met = 160 * (1 - std::pow(1 - 6.0 / 160, tokens));
  return 6.1e-3 + 0.19e-3 * met + 0.07e-3 * tokens;
}
double large_gpu_round(double requests, double depth) {
  return 1.3e-3 + 0.02e-3 * requests * depth + 0.1e-3 * depth;
}

const Costs kCosts[] = {
    {"LargeModelOnAGpu", large_gpu, large_gpu_round, 0.03, true},
    {"WeightsBound", [](double t) { return 10e-3 + 0.1e-3 * t; }, [](double r, double) { return 0.5e-3 + 0.05e-3 * r; },
     0.06, false},
    {"EveryTokenCosts", [](double t) { return 0.5e-3 + 1e-3 * t; }, [](double r, double) { return 0.9e-3 * r; }, 0.06,
     false},
    {"ProposalsCost", [](double t) { return 1e-3 + 0.02e-3 * t; },
     [](double r, double) { return 1.5e-3 + 0.02e-3 * r; }, 0.06, false},
    {"ABalance", [](double t) { return 5e-3 + 0.2e-3 * t; }, [](double r, double d) { return 1e-3 + 0.01e-3 * r * d; },
     0.05, false},
};

/// An engine of which only the time is simulated.
class Simulated {
 public:
  Simulated(const Costs& costs, double right, int64_t requests) : costs_(costs), right_(right), most_(requests) {}
  bool varies = false;   // how sure drafts are varies from token to token, and is half as much again as they are right
  int64_t rounds = 1;    // runs of requests, one behind the other, in each of kStarts engines that start anew
  int64_t output = 160;  // tokens of a request

  /// Tokens a second until as many are there as all requests want, with the control choosing (depth < 0) or at a fixed
  /// depth.
  double rate(int64_t depth) const {
    double seconds = 0;
    for (int64_t i = 0; i < kStarts; ++i) {
      DraftControl control(kMost, depth, costs_.sizes ? std::span<const int64_t>(kSizes) : std::span<const int64_t>());
      for (int64_t k = 0; k < rounds; ++k) seconds += run(control, static_cast<uint32_t>(7 + i * rounds + k));
    }
    return static_cast<double>(kStarts * most_ * output * rounds) / seconds;
  }

 private:
  struct Request {
    Draft draft;
    std::vector<double> chance;
    DraftRecord record;
    int64_t left;
  };

  double run(DraftControl& control, uint32_t seed) const {
    std::mt19937 rng(seed), noise(seed + 100);  // the same texts at any depth
    std::uniform_real_distribution<> uniform;
    const auto around = [&](double s) { return s * (1 + costs_.noise * (2 * uniform(noise) - 1)); };
    std::vector<Request> open(static_cast<size_t>(most_));
    for (Request& r : open) r.left = output;
    double seconds = 0;
    int64_t generated = 0;
    while (generated < most_ * output) {
      int64_t fed = 0;
      for (const Request& r : open) fed += 1 + static_cast<int64_t>(r.draft.size());
      const auto tokens = static_cast<double>(fed);
      const double took = around(costs_.step(costs_.sizes ? recorded_size(tokens) : tokens));
      seconds += took;
      control.step_took(fed,
                        took * (uniform(noise) < 0.002 ? 4 : 1));  // some are held up, which is nobody's gain or loss
      for (Request& r : open) {
        generated += verify(r, control, [&] { return uniform(rng); });
        if (r.left <= 0) r = Request{{}, {}, {}, output};  // another one takes its place
      }
      seconds += propose(open, control, around, [&] { return uniform(rng); });
    }
    return seconds * static_cast<double>(most_ * output) / static_cast<double>(generated);
  }

  template <typename Chance>
  static int64_t verify(Request& r, DraftControl& control, const Chance& chance) {
    size_t accepted = 0;
    while (accepted < r.draft.size() && chance() < r.chance[accepted]) ++accepted;
    const auto tokens = std::min(r.left, 1 + static_cast<int64_t>(accepted));
    r.left -= tokens;
    if (!r.draft.empty()) control.verified(r.draft, static_cast<int64_t>(accepted), r.record);
    r.draft = {};
    return tokens;
  }

  template <typename Around, typename Chance>
  double propose(std::vector<Request>& open, DraftControl& control, const Around& around, const Chance& chance) const {
    const auto n = static_cast<int64_t>(open.size());
    const int64_t depth = control.depth(n);
    if (depth == 0) return 0;
    const double took = around(costs_.round(static_cast<double>(n), static_cast<double>(depth)));
    control.proposals_took(n, depth, took);
    std::vector<DraftOffer> offers;
    for (Request& r : open) {
      r.chance.clear();
      for (int64_t k = 0; k < std::min(depth, r.left - 1); ++k) {
        const double p = varies ? std::clamp(right_ + 0.5 * (chance() - 0.5), 0.0, 1.0) : right_;
        r.chance.push_back(p);
        r.draft.tokens.push_back(0),
            r.draft.confidence.push_back(static_cast<float>(varies ? std::min(1.0, 1.5 * p) : p));
      }
      offers.push_back({&r.draft, &r.record});
    }
    control.choose(offers, n);
    for (size_t i = 0; i < open.size(); ++i) open[i].draft.shorten(offers[i].keep);
    return took;
  }

  const Costs& costs_;
  double right_;
  int64_t most_;
};

class Control : public testing::TestWithParam<Costs> {};

void expect_near_the_best(const Simulated& engine, const std::string& what) {
  const double plain = engine.rate(0), chosen = engine.rate(-1);
  double best = plain;
  int64_t depth = 0;
  for (int64_t k = 1; k <= kMost; ++k)
    if (const double r = engine.rate(k); r > best) best = r, depth = k;
  EXPECT_GE(chosen, 0.98 * plain) << what;
  EXPECT_GE(chosen, 0.95 * best) << what << ": depth " << depth << ", without drafts " << plain / best;
}

TEST_P(Control, IsNeverFarFromTheBestFixedDepthFromTheFirstTokenOn) {
  for (const double right : {0.0, 0.3, 0.5, 0.6, 0.75, 0.9, 0.95})
    for (const int64_t requests : {1, 4, 16, 64})
      expect_near_the_best(Simulated(GetParam(), right, requests),
                           std::to_string(requests) + " requests, right " + std::to_string(right));
}

TEST_P(Control, StaysThereInLongRunsWithDraftsThatOverrateThemselves) {
  for (const double right : {0.0, 0.3, 0.6, 0.9}) {
    for (const int64_t requests : {1, 4, 16}) {
      Simulated engine(GetParam(), right, requests);
      engine.varies = true, engine.rounds = 2, engine.output = 500;
      expect_near_the_best(engine, std::to_string(requests) + " requests, right " + std::to_string(right));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Control, testing::ValuesIn(kCosts),
                         [](const auto& p) { return std::string(p.param.name); });

TEST(Control, OfAFixedDepthAsksForThatMany) {
  DraftControl control(5, 3);
  EXPECT_EQ(control.depth(1), 3);
  EXPECT_EQ(control.depth(100), 3);
  const Draft d{{1, 2, 3}, {0.0f, 0.0f, 0.0f}};
  DraftRecord record;
  DraftOffer offer{&d, &record};
  control.choose({&offer, 1}, 1);
  EXPECT_EQ(offer.keep, 3);
  EXPECT_EQ(DraftControl(5, 9).depth(1), 5);
}

TEST(Control, MeasuresAStepWithoutDraftsFirstAndThenTriesThem) {
  DraftControl control(5, -1);
  EXPECT_TRUE(control.keeps_rows());
  EXPECT_EQ(control.depth(4), 0);
  control.step_took(4, 0.01);
  EXPECT_EQ(control.depth(4), 5);
}

TEST(Control, LeavesDraftsThatAreNeverRightAndTriesThemAgainAfterAPause) {
  DraftControl control(5, -1);
  DraftRecord record;
  int64_t rounds = 0, verified = 0, dropped = 0, first = 0;
  for (int64_t step = 0; step < 20000; ++step) {
    control.step_took(1, 0.01);
    if (!control.keeps_rows()) ++dropped;
    if (control.depth(1) == 0) continue;
    if (rounds++ == 2) first = step;
    control.proposals_took(1, 5, 0.002);
    const Draft d{{1, 2, 3, 4, 5}, std::vector<float>(5, 0.1f)};
    DraftOffer offer{&d, &record};
    control.choose({&offer, 1}, 1);
    Draft offered = d;
    offered.shorten(offer.keep);
    verified += offer.keep;
    if (offer.keep > 0) control.verified(offered, 0, record);
  }
  EXPECT_GE(rounds, 3);
  EXPECT_LT(rounds, 30);
  EXPECT_GT(verified, 0);
  EXPECT_LT(verified, 2 * rounds);
  EXPECT_LT(first, 1500) << "tried again";
  EXPECT_GT(dropped, 19000);
}

TEST(StepCosts, AreMeasuredOrOfThePowerLawThroughTheirNeighbours) {
  StepCosts costs;
  EXPECT_FALSE(costs.of(1).has_value());
  costs.took(4, 0.01);
  EXPECT_DOUBLE_EQ(*costs.of(4), 0.01);
  EXPECT_GT(*costs.of(24), 0.015);
  EXPECT_LT(*costs.of(24), 0.03);
  costs.took(16, 0.02);
  EXPECT_NEAR(*costs.of(8), 0.01 * std::sqrt(2), 1e-12);
  EXPECT_NEAR(*costs.of(64), 0.04, 1e-12);
  EXPECT_LT(*costs.of(1), 0.01);
  for (int64_t n = 1; n < 200; ++n) EXPECT_LE(*costs.of(n), *costs.of(n + 1)) << n;
}

TEST(StepCosts, ForgiveOneStepThatWasHeldUp) {
  StepCosts costs;
  costs.took(4, 0.137);  // the first one
  costs.took(4, 0.01);
  EXPECT_NEAR(*costs.of(4), 0.01, 1e-12);
  for (int i = 0; i < 20; ++i) costs.took(4, 0.01);
  costs.took(4, 0.5);
  EXPECT_LT(*costs.of(4), 0.0106);
  costs.took(6, 0.3);
  costs.took(8, 0.014);
  EXPECT_LE(*costs.of(6), *costs.of(8));
  for (int i = 0; i < 40; ++i) costs.took(4, 0.012);  // a longer context
  EXPECT_NEAR(*costs.of(4), 0.012, 1e-4);
}

}  // namespace
}  // namespace fathom
