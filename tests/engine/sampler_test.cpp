#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "engine/philox.h"

namespace fathom {
namespace {

TEST(Philox, GivesTheKnownAnswers) {
  // Known-answer vectors of the Random123 distribution (philox4x32-10).
  EXPECT_EQ(philox(0, 0, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

/// Share of each token in `draws` draws at different positions.
std::map<int32_t, double> shares(SamplingParams p, const std::vector<float>& logits, int draws = 100000) {
  Sampler s(p, {}, static_cast<int64_t>(logits.size()));
  std::map<int32_t, double> out;
  for (int i = 0; i < draws; ++i) out[s.sample(logits, i).token] += 1.0 / draws;
  return out;
}

const std::vector<float> kLogits = {0.0f, 1.0f, 2.0f, 3.0f, -1.0f, 2.5f};

std::vector<double> softmax(double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (float v : kLogits) p.push_back(std::exp(v / temperature)), sum += p.back();
  for (double& v : p) v /= sum;
  return p;
}

/// Four standard deviations of a share over 100,000 draws.
double slack(double p) {
  return 4 * std::sqrt(p * (1 - p) / 100000) + 1e-9;
}

TEST(Sampler, DrawsFollowTheTemperedDistribution) {
  for (double temperature : {0.5, 1.0, 2.0}) {
    SamplingParams params;
    params.temperature = temperature;
    const auto got = shares(params, kLogits);
    const auto want = softmax(temperature);
    for (size_t i = 0; i < want.size(); ++i) {
      const auto it = got.find(static_cast<int32_t>(i));
      EXPECT_NEAR(it == got.end() ? 0 : it->second, want[i], slack(want[i])) << "token " << i << " at " << temperature;
    }
  }
}

void expect_only(const SamplingParams& params, const std::vector<int32_t>& allowed) {
  const auto got = shares(params, kLogits);
  const auto p = softmax(params.temperature);
  double total = 0;
  for (int32_t t : allowed) total += p[static_cast<size_t>(t)];
  EXPECT_EQ(got.size(), allowed.size());
  for (int32_t t : allowed)
    EXPECT_NEAR(got.at(t), p[static_cast<size_t>(t)] / total, slack(p[static_cast<size_t>(t)] / total)) << t;
}

TEST(Sampler, TopKTopPAndMinPKeepTheRightTokensInProportion) {
  SamplingParams k, p, m, all;
  k.top_k = 2;
  expect_only(k, {3, 5});
  p.top_p = 0.75;  // 0.463 + 0.281 = 0.744 is not enough, the third one is needed
  expect_only(p, {3, 5, 2});
  m.min_p = 0.3;  // share of the best: token 2 has e^-1 = 0.37, token 1 has e^-2 = 0.14
  expect_only(m, {3, 5, 2});
  all.top_k = 5, all.top_p = 0.95, all.min_p = 0.5;
  expect_only(all, {3, 5});
}

TEST(Sampler, ZeroTemperatureTakesTheBestAndTheLowerIdOfEquals) {
  SamplingParams params;
  params.temperature = 0;
  const std::vector<float> tie = {1, 5, 5, 2};
  EXPECT_EQ(Sampler(params, {}, 4).sample(tie, 0).token, 1);
  params.logit_bias = {{3, 4.0}};
  EXPECT_EQ(Sampler(params, {}, 4).sample(tie, 0).token, 3);
  EXPECT_EQ(Sampler(params, {}, 4).sample(tie, 0, std::vector<int32_t>{3}).token, 1);
}

TEST(Sampler, PenaltiesCountPromptAndOutputAsTheyShould) {
  SamplingParams params;
  params.temperature = 0;
  const std::vector<float> logits = {3, 2.5, -1};
  params.repetition_penalty = 2;  // the prompt counts
  EXPECT_EQ(Sampler(params, std::vector<int32_t>{0}, 3).sample(logits, 0).token, 1);
  params.repetition_penalty = 1, params.presence_penalty = 1;  // the prompt does not count, the output does
  Sampler presence(params, std::vector<int32_t>{0}, 3);
  EXPECT_EQ(presence.sample(logits, 0).token, 0);
  presence.accept(0);
  EXPECT_EQ(presence.sample(logits, 1).token, 1);
  params.presence_penalty = 0, params.frequency_penalty = 0.3;
  Sampler frequency(params, {}, 3);
  frequency.accept(0);
  EXPECT_EQ(frequency.sample(logits, 1).token, 0);
  frequency.accept(0);
  EXPECT_EQ(frequency.sample(logits, 2).token, 1);
}

TEST(Sampler, LogprobsAreThoseOfTheModelWhateverTheSampling) {
  SamplingParams params;
  params.temperature = 0, params.top_logprobs = 2, params.logit_bias = {{0, 100.0}};
  const auto got = Sampler(params, {}, 6).sample(kLogits, 0);
  const auto p = softmax(1);
  EXPECT_EQ(got.token, 0);
  EXPECT_NEAR(got.logprob, std::log(p[0]), 1e-5);
  ASSERT_EQ(got.top.size(), 2u);
  EXPECT_EQ(got.top[0].token, 3);
  EXPECT_NEAR(got.top[0].logprob, std::log(p[3]), 1e-5);
  EXPECT_EQ(got.top[1].token, 5);
}

TEST(Sampler, TheSameSeedAndPositionDrawTheSameTokenOtherSeedsDiffer) {
  SamplingParams a, b;
  b.seed = 1;
  int differ = 0;
  for (int64_t position = 0; position < 200; ++position) {
    const int32_t first = Sampler(a, {}, 6).sample(kLogits, position).token;
    EXPECT_EQ(first, Sampler(a, {}, 6).sample(kLogits, position).token);
    differ += first != Sampler(b, {}, 6).sample(kLogits, position).token;
  }
  EXPECT_GT(differ, 50);
}

TEST(Sampler, RefusesWhatItCannotDoWithTheFieldsName) {
  const auto refuses = [](auto change, const char* field) {
    SamplingParams p;
    change(p);
    try {
      p.check(10);
      ADD_FAILURE() << field;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(field), std::string::npos) << e.what();
    }
  };
  refuses([](auto& p) { p.temperature = -1; }, "temperature");
  refuses([](auto& p) { p.temperature = NAN; }, "temperature");
  refuses([](auto& p) { p.top_p = 0; }, "top_p");
  refuses([](auto& p) { p.top_p = 1.5; }, "top_p");
  refuses([](auto& p) { p.top_k = -1; }, "top_k");
  refuses([](auto& p) { p.min_p = 1; }, "min_p");
  refuses([](auto& p) { p.repetition_penalty = 0; }, "repetition_penalty");
  refuses([](auto& p) { p.logit_bias = {{10, 1.0}}; }, "logit_bias");
  refuses([](auto& p) { p.logit_bias = {{1, INFINITY}}; }, "logit_bias");
  EXPECT_THROW(Sampler(SamplingParams{}, {}, 2).sample(std::vector<float>{NAN, 0}, 5), Error);
}

}  // namespace
}  // namespace fathom
