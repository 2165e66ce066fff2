// Steady stretch, statistics and fit, on records made by hand.
#include "bench/steady.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fathom::bench {
namespace {

/// Sent at `sent`, `tokens` pieces every `gap` seconds after `wait`.
RequestRecord request(double sent, double wait, double gap, int tokens) {
  RequestRecord r;
  r.due = r.sent = sent;
  for (int i = 0; i < tokens; ++i) r.pieces.push_back(sent + wait + gap * i);
  r.end = r.pieces.back();
  r.prompt_tokens = 100, r.output_tokens = tokens;
  r.finish = "length";
  return r;
}

/// `n` streams of `rounds` requests one after the other; stream k starts k * stagger seconds late.
LevelRun closed_loop(int n, int rounds, double gap, double stagger) {
  LevelRun run;
  run.concurrency = n;
  for (int k = 0; k < n; ++k) {
    double at = k * stagger;
    for (int i = 0; i < rounds; ++i) {
      run.requests.push_back(request(at, gap, gap, 50));
      at = run.requests.back().end + 0.001;
    }
  }
  return run;
}

TEST(Quantiles, AreLinearBetweenValues) {
  const Quantiles q = quantiles({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(q.p50, 2.5);
  EXPECT_DOUBLE_EQ(q.p90, 3.7);
  EXPECT_DOUBLE_EQ(q.mean, 2.5);
  EXPECT_EQ(q.most, 4);
  EXPECT_EQ(quantiles({}).count, 0u);
  EXPECT_EQ(quantiles({7}).p99, 7);
}

TEST(Stretch, LeavesRampAndDrainOut) {
  const LevelRun run = closed_loop(4, 3, 0.02, 0.5);  // the last stream starts at 1.5 s, the first ends at about 3 s
  const Stretch s = longest_stretch(run.requests);
  EXPECT_EQ(s.peak, 4);
  EXPECT_NEAR(s.begin, 1.5, 1e-9);
  EXPECT_NEAR(s.before, 1.5, 1e-9);
  EXPECT_NEAR(s.after, 1.5, 1e-9);
  EXPECT_NEAR(s.length(), 1.502, 1e-6);
  EXPECT_GT(s.mean, 3.99);
  EXPECT_EQ(s.least, 4);
}

TEST(Stretch, ALongPauseEndsItAndAShortOneDoesNot) {
  std::vector<RequestRecord> requests = {request(0, 1, 1, 10), request(10.02, 1, 1, 10), request(21, 1, 1, 5)};
  const Stretch s = longest_stretch(requests);
  EXPECT_NEAR(s.begin, 0, 1e-9);
  EXPECT_NEAR(s.end, 20.02, 1e-9);
  EXPECT_EQ(longest_stretch({}).length(), 0);
}

TEST(LevelStats, CountTokensOfTheStretchOnly) {
  const LevelRun run = closed_loop(4, 6, 0.02, 0.1);
  const LevelStats s = analyse(run);
  EXPECT_NEAR(s.output_rate, 4 / 0.02, 4 / 0.02 * 0.01);
  EXPECT_LT(s.whole_rate, s.output_rate * 0.97);
  EXPECT_NEAR(s.step_time, 0.02, 0.0005);
  EXPECT_NEAR(s.gap.p50, 0.02, 1e-9);
  EXPECT_NEAR(s.token_time.p50, 0.02, 1e-9);
  EXPECT_NEAR(s.first_token.p50, 0.02, 1e-9);
  EXPECT_NEAR(s.request_rate, 4, 0.3);
  EXPECT_EQ(s.tokens_a_piece, 1);
  EXPECT_EQ(s.errors, 0u);
}

TEST(LevelStats, TokensComeFromUsageAndNotFromPieces) {
  LevelRun run = closed_loop(2, 4, 0.02, 0);
  for (RequestRecord& r : run.requests) r.output_tokens = 150, r.reasoning_tokens = 75, r.cached_tokens = 25;
  const LevelStats s = analyse(run);
  EXPECT_NEAR(s.tokens_a_piece, 3, 1e-9);
  EXPECT_NEAR(s.output_rate, 3 * 2 / 0.02, 5);
  EXPECT_NEAR(s.reasoning_rate, s.output_rate / 2, 1e-6);
  EXPECT_NEAR(s.step_time, 0.02, 0.0005);
  EXPECT_NEAR(s.cached_share, 0.25, 1e-9);
  EXPECT_NEAR(s.token_time.p50, 49 * 0.02 / 149, 1e-9);
}

TEST(LevelStats, ErrorsAreCountedAndNotMeasured) {
  LevelRun run = closed_loop(2, 4, 0.02, 0);
  RequestRecord bad;
  bad.sent = 0.5, bad.end = 0.6, bad.error = "HTTP 500: oh";
  run.requests.push_back(bad);
  run.requests.push_back(bad);
  const LevelStats s = analyse(run);
  EXPECT_EQ(s.errors, 2u);
  EXPECT_EQ(s.first_errors, std::vector<std::string>{"HTTP 500: oh"});
  LevelRun nothing;
  nothing.requests = {bad};
  EXPECT_EQ(analyse(nothing).output_rate, 0);
  EXPECT_EQ(analyse({}).requests, 0u);
}

LevelStats level(double n, double step_time, double peak = 0) {
  LevelStats s;
  s.concurrency = n, s.step_time = step_time, s.tokens_a_piece = 1;
  s.stretch.mean = n, s.stretch.peak = peak > 0 ? peak : n;
  return s;
}

TEST(Fit, FindsTheLineAndItsAsymptote) {
  const Fit f = fit_step_time({level(1, 0.0105), level(4, 0.012), level(16, 0.018), level(64, 0.042)});
  ASSERT_TRUE(f.valid) << f.why;
  EXPECT_NEAR(f.a, 0.010, 1e-9);
  EXPECT_NEAR(f.b, 0.0005, 1e-12);
  EXPECT_NEAR(f.asymptote, 2000, 1e-3);
  EXPECT_NEAR(f.b_error, 0, 1e-9);
}

TEST(Fit, IntervalsAreThoseOfStudentsT) {
  // By hand: b = 1, residuals 0.1, -0.2, 0.1 about y = x; s^2 = 0.06 over one degree of freedom.
  const Fit f = fit_step_time({level(1, 1.1), level(2, 1.8), level(3, 3.1)});
  ASSERT_TRUE(f.valid);
  EXPECT_NEAR(f.b, 1, 1e-9);
  EXPECT_NEAR(f.b_error, 12.706 * std::sqrt(0.06) / std::sqrt(2), 1e-6);
  EXPECT_NEAR(f.a_error, 12.706 * std::sqrt(0.06) * std::sqrt(1.0 / 3 + 4.0 / 2), 1e-6);
  EXPECT_EQ(f.asymptote_high, 0) << "an interval of b that contains 0 bounds nothing";
}

TEST(Fit, NeedsThreeLevelsThatReachedTheirLoad) {
  EXPECT_FALSE(fit_step_time({level(1, 1), level(2, 2)}).valid);
  EXPECT_FALSE(fit_step_time({level(1, 1), level(2, 2), level(64, 3, 32)}).valid);
  EXPECT_FALSE(fit_step_time({level(1, 3), level(2, 2), level(3, 1)}).valid);
}

}  // namespace
}  // namespace fathom::bench
