// /v1/completions, /tokenize, /detokenize and /v1/models.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

constexpr const char* kPath = "/v1/completions";

TEST(Completions, EveryFormOfPromptGivesOneChoiceForEachOutput) {
  RunningServer server;
  const std::string rest = R"("max_tokens":6,"temperature":0})";
  const Answer text = post(server.port(), kPath, R"({"prompt":"Once upon a time",)" + rest);
  EXPECT_EQ(text.status, 200);
  EXPECT_EQ(at(text.body, "object"), "text_completion");
  EXPECT_EQ(at(text.body, "choices.0.finish_reason"), "length");
  auto ids = ids_of("Once upon a time");
  ids.insert(ids.begin(), 0);  // the begin token that text gets
  const std::string list = fmt::format("[{}]", fmt::join(ids, ","));
  const Answer by_ids = post(server.port(), kPath, R"({"prompt":)" + list + "," + rest);
  EXPECT_EQ(at(by_ids.body, "choices.0.text"), at(text.body, "choices.0.text"));
  const Answer many = post(server.port(), kPath, R"({"n":2,"prompt":["Once upon a time","The king"],)" + rest);
  EXPECT_EQ(at(many.body, "choices.0.text"), at(text.body, "choices.0.text"));
  EXPECT_EQ(at(many.body, "choices.1.text"), at(text.body, "choices.0.text"));
  EXPECT_EQ(at(many.body, "choices.2.index"), "2");
  EXPECT_EQ(at(many.body, "choices.3.text"), at(many.body, "choices.2.text"));
  const Answer lists = post(server.port(), kPath, R"({"prompt":[)" + list + "," + list + "]," + rest);
  EXPECT_EQ(at(lists.body, "choices.1.text"), at(text.body, "choices.0.text"));
}

TEST(Completions, TheDefaultLengthIsThatOfOpenAI) {
  RunningServer server;
  const Answer a = post(server.port(), kPath, R"({"prompt":"Once upon a time","ignore_eos":true})");
  EXPECT_EQ(at(a.body, "usage.completion_tokens"), "16");
}

TEST(Completions, AStreamSaysTheSameAsAWholeAnswer) {
  RunningServer server;
  const std::string body = R"({"prompt":["Once upon","The old"],"max_tokens":20,"seed":5,"echo":true)";
  const Answer whole = post(server.port(), kPath, body + "}"),
               stream = post(server.port(), kPath, body + R"(,"stream":true})");
  std::string texts[2], finish[2];
  const auto events = events_of(stream.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(at(events[events.size() - 2], "usage.completion_tokens"), "40");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const size_t index = std::stoul(at(events[i], "choices.0.index"));
    texts[index] += at(events[i], "choices.0.text");
    if (at(events[i], "choices.0.finish_reason") != "null") finish[index] += at(events[i], "choices.0.finish_reason");
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i], at(whole.body, fmt::format("choices.{}.text", i)));
    EXPECT_EQ(finish[i], "length");
  }
  EXPECT_TRUE(texts[0].starts_with("Once upon"));
}

TEST(Completions, LogprobsOfAnEchoedPromptAreThoseOfAppendingItsTokens) {
  RunningServer server;
  const auto ids = ids_of("Once upon a time there was a king");
  const std::string list = fmt::format("[{}]", fmt::join(ids, ","));
  const Answer a = post(server.port(), kPath,
                        R"({"prompt":)" + list + R"(,"echo":true,"logprobs":1,"max_tokens":0,"temperature":0})");
  ASSERT_EQ(a.status, 200) << a.body;
  const auto value = json(a.body);
  EXPECT_EQ(value.find("choices")->items[0].find("logprobs")->find("tokens")->items.size(), ids.size());
  EXPECT_EQ(at(a.body, "choices.0.text"), "Once upon a time there was a king");
  EXPECT_EQ(at(a.body, "choices.0.logprobs.token_logprobs.0"), "null");
  EXPECT_EQ(at(a.body, "usage.completion_tokens"), "0");
  EXPECT_EQ(at(a.body, "choices.0.logprobs.text_offset.1"),
            std::to_string(at(a.body, "choices.0.logprobs.tokens.0").size()));
  // The same number, asked for the other way round: the token generated behind the shorter prompt.
  const size_t n = ids.size() - 1;
  const std::string shorter = fmt::format("[{}]", fmt::join(ids.begin(), ids.begin() + static_cast<long>(n), ","));
  const Answer b =
      post(server.port(), kPath,
           fmt::format(R"({{"prompt":{},"logprobs":0,"max_tokens":1,"temperature":0,"logit_bias":{{"{}":100}}}})",
                       shorter, ids[n]));
  EXPECT_EQ(at(b.body, "choices.0.logprobs.tokens.0"), at(a.body, fmt::format("choices.0.logprobs.tokens.{}", n)));
  EXPECT_NEAR(std::stod(at(b.body, "choices.0.logprobs.token_logprobs.0")),
              std::stod(at(a.body, fmt::format("choices.0.logprobs.token_logprobs.{}", n))), 1e-4);
}

TEST(Completions, WhatIsNotRightIsA400ThatNamesIt) {
  RunningServer server;
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":[1.5]})", "prompt"},
      {R"({"prompt":[99999]})", "prompt"},
      {R"({"prompt":[-1]})", "prompt"},
      {R"({"prompt":{}})", "prompt"},
      {R"({"prompt":"a","suffix":"b"})", "suffix"},
      {R"({"prompt":"a","best_of":3})", "best_of"},
      {R"({"prompt":"a","logprobs":21})", "logprobs"},
      {R"({"prompt":"a","max_tokens":-1})", "max_tokens"},
      {R"({"prompt":["a","b","c"],"n":100})", "outputs"},
  };
  for (const auto& [body, word] : cases) {
    const Answer a = post(server.port(), kPath, body);
    EXPECT_EQ(a.status, 400) << body << a.body;
    EXPECT_NE(at(a.body, "error.message").find(word), std::string::npos) << body << a.body;
  }
}

TEST(Completions, OnePromptThatDoesNotFitRefusesTheRequest) {
  RunningServer server;
  std::string word = "[5";
  for (int i = 0; i < 2500; ++i) word += ",5";
  const Answer a = post(server.port(), kPath, R"({"prompt":[[5,6],)" + word + "]]}");
  EXPECT_EQ(a.status, 400);
  EXPECT_EQ(at(a.body, "error.code"), "context_length_exceeded");
}

TEST(Tokenize, GivesIdsThatDetokenizeTurnsBack) {
  RunningServer server;
  const Answer a = post(server.port(), "/tokenize",
                        R"({"prompt":"Grüße, 世界!","add_special_tokens":false,"return_token_strs":true})");
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(at(a.body, "max_model_len"), "2048");
  EXPECT_EQ(json(a.body).find("token_strs")->items.size(), std::stoul(at(a.body, "count")));
  const Answer b = post(server.port(), "/detokenize", R"({"tokens":)" + at(a.body, "tokens") + "}");
  EXPECT_EQ(at(b.body, "prompt"), "Grüße, 世界!");
  EXPECT_EQ(at(post(server.port(), "/tokenize", R"({"prompt":""})").body, "tokens"), "[0]");
  EXPECT_EQ(post(server.port(), "/tokenize", "{}").status, 400);
  EXPECT_EQ(post(server.port(), "/detokenize", R"({"tokens":[100000]})").status, 400);
  EXPECT_EQ(post(server.port(), "/detokenize", R"({"tokens":"x"})").status, 400);
}

TEST(Models, AreListedAndFoundByName) {
  RunningServer server;
  const Answer a = get(server.port(), "/v1/models");
  EXPECT_EQ(at(a.body, "data.0.id"), "fairy");
  EXPECT_EQ(at(a.body, "data.1.id"), "other-name");
  EXPECT_EQ(at(get(server.port(), "/v1/models/other-name").body, "root"), "fairy");
  EXPECT_EQ(get(server.port(), "/v1/models/none").status, 404);
}

}  // namespace
}  // namespace fathom::serve::test
