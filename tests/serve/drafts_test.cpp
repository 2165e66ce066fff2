// A server with speculation: the same answers, and what its users are told of drafts.
#include <numeric>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

constexpr const char* kPath = "/v1/completions";
constexpr const char* kGreedy =
    R"({"prompt":["Once upon a time","The king"],"max_tokens":60,"temperature":0,"ignore_eos":true)";

ServeOptions drafting(const char* speculate) {
  ServeOptions o = quiet_options();
  o.speculate = speculate;
  return o;
}

/// Sum of a metric over its labels.
double metric(const std::string& page, const std::string& name) {
  double sum = 0;
  for (size_t at = 0; (at = page.find("\n" + name + "{", at)) != page.npos; ++at)
    sum += std::stod(page.substr(page.find("} ", at) + 2));
  return sum;
}

/// Numbers of a JSON array at a path.
std::vector<int64_t> numbers(const std::string& body, const std::string& path) {
  std::vector<int64_t> out;
  for (size_t i = 0; has(body, path + "." + std::to_string(i)); ++i)
    out.push_back(std::stoll(at(body, path + "." + std::to_string(i))));
  return out;
}

TEST(Drafts, UsageSaysHowManyWereRightByPositionAndWhatStepsBrought) {
  RunningServer plain, server(drafting("3"));
  const Answer want = post(plain.port(), kPath, std::string(kGreedy) + "}"),
               got = post(server.port(), kPath, std::string(kGreedy) + "}");
  for (const char* choice : {"choices.0.text", "choices.1.text"})
    EXPECT_EQ(at(got.body, choice), at(want.body, choice));
  const std::string details = "usage.completion_tokens_details.";
  for (const char* field : {"accepted_prediction_tokens", "steps", "accepted_by_position"})
    EXPECT_FALSE(has(want.body, details + field)) << field << " without drafts";
  const auto verified = numbers(got.body, details + "verified_by_position"),
             right = numbers(got.body, details + "accepted_by_position");
  ASSERT_EQ(verified.size(), 3u) << got.body;
  ASSERT_EQ(right.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(right[i], verified[i]);
  const int64_t accepted = std::stoll(at(got.body, details + "accepted_prediction_tokens")),
                rejected = std::stoll(at(got.body, details + "rejected_prediction_tokens")),
                steps = std::stoll(at(got.body, details + "steps"));
  EXPECT_GT(accepted, 0);
  EXPECT_EQ(std::accumulate(right.begin(), right.end(), int64_t{0}), accepted);
  EXPECT_EQ(std::accumulate(verified.begin(), verified.end(), int64_t{0}), accepted + rejected);
  EXPECT_EQ(steps + accepted, 120) << "each step brings a request one token and the drafts that were right";
  EXPECT_NEAR(std::stod(at(got.body, details + "tokens_per_step")), 120.0 / static_cast<double>(steps), 0.001);
  EXPECT_GT(std::stod(at(got.body, details + "steps_per_second")), 0);

  const std::string page = get(server.port(), "/metrics").body;
  EXPECT_EQ(metric(page, "vllm:spec_decode_num_accepted_tokens_total"), static_cast<double>(accepted));
  EXPECT_EQ(metric(page, "vllm:spec_decode_num_draft_tokens_total"), static_cast<double>(accepted + rejected));
  EXPECT_EQ(metric(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total"), static_cast<double>(accepted));
  EXPECT_EQ(metric(page, "fathom_draft_tokens_per_pos_total"), static_cast<double>(accepted + rejected));
  EXPECT_GT(metric(page, "fathom_engine_steps_total"), 0);
}

TEST(Drafts, AStreamSaysTheSameAsWithoutPieceByPiece) {
  RunningServer plain, server(drafting("5"));
  for (const char* rest :
       {R"(,"stream":true})", R"(,"stream":true,"stop":["the "]})", R"(,"stream":true,"logprobs":1})"}) {
    std::vector<std::string> texts[2];
    for (const bool drafts : {false, true}) {
      const Answer a = post((drafts ? server : plain).port(), kPath, kGreedy + std::string(rest));
      texts[drafts].resize(2);
      for (const auto& event : events_of(a.body))
        if (event != "[DONE]" && has(event, "choices.0.index"))
          texts[drafts][std::stoul(at(event, "choices.0.index"))] += at(event, "choices.0.text");
    }
    EXPECT_EQ(texts[0], texts[1]) << rest;
    EXPECT_FALSE(texts[1][0].empty());
  }
}

}  // namespace
}  // namespace fathom::serve::test
