// The choice of how many drafts to make, against simulated engines of known costs and drafts of known quality.
#include "engine/draft_control.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace fathom {
namespace {

constexpr int64_t kMost = 5;

/// An engine of which only the time is simulated.
struct Simulated {
  double fixed, each, proposal;  // seconds of a step, of a token in it, of a proposal
  double right;                  // probability that a draft is right if those before it are
  int64_t requests;

  /// Tokens a second over many steps, with the control choosing (depth < 0) or at a fixed depth.
  double run(int64_t depth) const {
    std::mt19937 rng(7);
    std::uniform_real_distribution<> uniform;
    DraftControl control(kMost, depth);
    std::vector<Draft> drafts(static_cast<size_t>(requests));
    std::vector<DraftRecord> records(drafts.size());
    double seconds = 0, tokens = 0;
    for (int step = 0; step < 6000; ++step) {
      int64_t fed = 0;
      for (const auto& d : drafts) fed += 1 + static_cast<int64_t>(d.size());
      const double took = (fixed + each * static_cast<double>(fed)) * (0.9 + 0.2 * uniform(rng));
      seconds += took;
      control.step_took(fed, took);
      for (size_t i = 0; i < drafts.size(); ++i) {
        size_t accepted = 0;
        while (accepted < drafts[i].size() && uniform(rng) < right) ++accepted;
        tokens += 1 + static_cast<double>(accepted);
        if (!drafts[i].empty()) control.verified(drafts[i], static_cast<int64_t>(accepted), records[i]);
        drafts[i] = {};
      }
      const int64_t wanted = control.depth(requests);
      if (wanted == 0) continue;
      for (size_t i = 0; i < drafts.size(); ++i) {
        Draft d{std::vector<int32_t>(static_cast<size_t>(wanted)),
                std::vector<float>(static_cast<size_t>(wanted), static_cast<float>(right))};
        const auto worth = static_cast<size_t>(control.worth(d, records[i], requests));
        d.tokens.resize(worth), d.confidence.resize(worth);
        drafts[i] = d;
      }
      seconds += proposal * static_cast<double>(requests);
      control.proposals_took(requests, proposal * static_cast<double>(requests));
    }
    return tokens / seconds;
  }
};

class Control : public testing::TestWithParam<Simulated> {};

TEST_P(Control, IsNeverFarFromTheBestFixedDepth) {
  const Simulated engine = GetParam();
  const double plain = engine.run(0), chosen = engine.run(-1);
  double best = plain;
  for (int64_t k = 1; k <= kMost; ++k) best = std::max(best, engine.run(k));
  EXPECT_GE(chosen, 0.98 * plain);
  EXPECT_GE(chosen, 0.95 * best) << "without drafts " << plain;
}

INSTANTIATE_TEST_SUITE_P(Engines, Control,
                         testing::Values(Simulated{10e-3, 0.1e-3, 0.5e-3, 0.8, 1},    // weights bound: drafts pay
                                         Simulated{10e-3, 0.1e-3, 0.5e-3, 0.3, 1},    // and these hardly
                                         Simulated{10e-3, 0.1e-3, 0.5e-3, 0.0, 1},    // never right
                                         Simulated{10e-3, 0.1e-3, 0.5e-3, 0.99, 4},   // nearly always
                                         Simulated{1e-3, 1e-3, 0.2e-3, 0.8, 1},       // every token costs
                                         Simulated{0.1e-3, 1e-3, 0.5e-3, 0.6, 16},    // too much
                                         Simulated{1e-3, 0.02e-3, 0.4e-3, 0.7, 64},   // proposals cost
                                         Simulated{5e-3, 0.2e-3, 0.05e-3, 0.7, 16}),  // a balance
                         [](const auto& p) { return "Engine" + std::to_string(p.index); });

TEST(Control, OfAFixedDepthAsksForThatMany) {
  DraftControl control(5, 3);
  EXPECT_EQ(control.depth(1), 3);
  EXPECT_EQ(control.depth(100), 3);
  const Draft d{{1, 2, 3}, {0.0f, 0.0f, 0.0f}};
  DraftRecord record;
  EXPECT_EQ(control.worth(d, record, 1), 3);
  EXPECT_EQ(DraftControl(5, 9).depth(1), 5);
}

}  // namespace
}  // namespace fathom
