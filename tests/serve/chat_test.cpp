// /v1/chat/completions, streamed and whole, against what clients send and field reports complain about.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kCalls =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
    "string=\"true\">Paris and London</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
    "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}])";

std::string chat(const std::string& more, const std::string& text = "Tell me a story") {
  return R"({"messages":[{"role":"user","content":")" + text + R"("}])" + (more.empty() ? "" : ",") + more + "}";
}

TEST(Chat, AWholeAnswerHasWhatOpenAIsHas) {
  RunningServer server;
  const Answer a = post(server.port(), kPath, chat(R"("max_tokens":12,"temperature":0,"model":"fairy")"));
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(at(a.body, "object"), "chat.completion");
  EXPECT_EQ(at(a.body, "choices.0.message.role"), "assistant");
  EXPECT_EQ(at(a.body, "choices.0.finish_reason"), "length");
  EXPECT_TRUE(at(a.body, "choices.0.message.content").starts_with("Once upon a time"));
  EXPECT_EQ(at(a.body, "usage.completion_tokens"), "12");
  EXPECT_EQ(at(a.body, "usage.total_tokens"), std::to_string(12 + std::stoi(at(a.body, "usage.prompt_tokens"))));
  EXPECT_TRUE(at(a.body, "id").starts_with("chatcmpl-"));
  EXPECT_FALSE(a.header("x-request-id").empty());
  EXPECT_EQ(a.header("x-fathom-warning"), "");
}

TEST(Chat, OfficialSamplingHasNoEffectInThinkingMode) {
  ServeOptions options = quiet_options();
  options.compat = "official";
  RunningServer server(options), plain;
  const auto ask = [](RunningServer& s, const std::string& more) {
    return post(s.port(), kPath, chat(R"("max_tokens":16,"seed":3)" + more));
  };
  const auto text = [](const Answer& a) {
    return at(a.body, "choices.0.message.reasoning_content") + "|" + at(a.body, "choices.0.message.content");
  };
  const std::string thinking = R"(,"thinking":{"type":"enabled"})", cold = R"(,"temperature":0,"presence_penalty":2)";
  const Answer asked = ask(server, thinking + cold);
  EXPECT_EQ(text(asked), text(ask(server, thinking)));
  EXPECT_NE(text(asked), text(ask(plain, thinking + cold)));
  EXPECT_NE(asked.header("x-fathom-warning").find("no effect in thinking mode"), std::string::npos);
  EXPECT_EQ(ask(server, thinking).header("x-fathom-warning"), "");
  constexpr const char* kContent = "choices.0.message.content";
  EXPECT_EQ(at(ask(server, cold).body, kContent), at(ask(plain, cold).body, kContent)) << "without thinking";
}

TEST(Chat, AStreamSaysTheSameAsAWholeAnswerAndEndsWithUsageAndDone) {
  RunningServer server;
  const std::string common = R"("max_tokens":30,"temperature":0.8,"seed":7)";
  const Answer whole = post(server.port(), kPath, chat(common));
  const Answer stream =
      post(server.port(), kPath, chat(common + R"(,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(stream.header("content-type"), "text/event-stream; charset=utf-8");
  const Streamed s = join_chat(stream.body);
  EXPECT_EQ(s.content, at(whole.body, "choices.0.message.content"));
  EXPECT_EQ(s.finish, "length");
  EXPECT_EQ(s.completion_tokens, 30);
  EXPECT_TRUE(s.done);
  EXPECT_TRUE(stream.complete);
  const auto events = events_of(stream.body);
  EXPECT_EQ(at(events[events.size() - 2], "choices"), "[]");
  EXPECT_EQ(at(events[1], "usage"), "null");
  // A client that has not asked for usage never sees a chunk without choices.
  const Answer plain = post(server.port(), kPath, chat(common + R"(,"stream":true)"));
  for (const auto& event : events_of(plain.body))
    if (event != "[DONE]") {
      EXPECT_TRUE(has(event, "choices.0.index")) << event;
    }
  EXPECT_EQ(join_chat(plain.body).completion_tokens, 30);
}

TEST(Chat, TheSameSeedGivesTheSameTextAndChoicesDiffer) {
  RunningServer server;
  const std::string body = chat(R"("max_tokens":20,"temperature":1.5,"seed":-3,"n":3)");
  const Answer a = post(server.port(), kPath, body), b = post(server.port(), kPath, body);
  for (const char* path : {"choices.0.message.content", "choices.1.message.content", "choices.2.message.content"})
    EXPECT_EQ(at(a.body, path), at(b.body, path));
  EXPECT_NE(at(a.body, "choices.0.message.content"), at(a.body, "choices.1.message.content"));
  EXPECT_EQ(at(a.body, "usage.completion_tokens"), "60");
}

TEST(Chat, ThinkingIsToldApartAndItsBudgetEndsIt) {
  RunningServer server;
  const Answer off = post(server.port(), kPath, chat(R"("max_tokens":8,"temperature":0)"));
  EXPECT_FALSE(has(off.body, "choices.0.message.reasoning_content"));
  for (const char* on : {R"("thinking":{"type":"enabled"})", R"("reasoning_effort":"high")", R"("thinking":true)",
                         R"("chat_template_kwargs":{"thinking":true})", R"("reasoning":{"effort":"max"})"}) {
    const Answer a = post(server.port(), kPath, chat(std::string(on) + R"(,"max_tokens":40,"temperature":0)"));
    EXPECT_EQ(a.status, 200) << a.body;
    EXPECT_TRUE(has(a.body, "choices.0.message.reasoning_content")) << on;
    EXPECT_EQ(at(a.body, "choices.0.message.reasoning_content"), at(a.body, "choices.0.message.reasoning"));
  }
  const Answer budget = post(
      server.port(), kPath, chat(R"("thinking":{"type":"enabled","budget_tokens":3},"max_tokens":20,"temperature":0)"));
  EXPECT_EQ(at(budget.body, "usage.completion_tokens_details.reasoning_tokens"), "4");  // three and </think>
  EXPECT_NE(at(budget.body, "choices.0.message.content"), "");
  const Answer none = post(server.port(), kPath,
                           chat(R"("thinking":{"type":"enabled"},"thinking_budget":0,"max_tokens":9,"temperature":0)"));
  EXPECT_FALSE(has(none.body, "choices.0.message.reasoning_content"));
}

TEST(Chat, EveryEffortChangesThePromptOrSaysThatItDoesNot) {
  RunningServer server;
  std::map<std::string, std::string> tokens, warnings;
  for (const char* effort : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    const Answer a = post(server.port(), "/tokenize", chat(fmt::format(R"("reasoning_effort":"{}")", effort)));
    ASSERT_EQ(a.status, 200) << a.body;
    tokens[effort] = at(a.body, "tokens");
    warnings[effort] = a.header("x-fathom-warning");
  }
  EXPECT_NE(tokens["none"], tokens["low"]);
  EXPECT_NE(tokens["low"], tokens["high"]);
  EXPECT_NE(tokens["high"], tokens["max"]);
  EXPECT_EQ(tokens["xhigh"], tokens["max"]);
  for (const char* same : {"minimal", "medium"}) {
    EXPECT_EQ(tokens[same], tokens["low"]);
    EXPECT_NE(warnings[same].find("taken as low"), std::string::npos);
  }
  EXPECT_EQ(post(server.port(), kPath, chat(R"("reasoning_effort":"huge")")).status, 400);
}

TEST(Chat, ACallComesOutAsACallWithItsArgumentsInPieces) {
  StubBackend backend = saying(std::string("Let me look.") + kCalls);
  RunningServer server(backend);
  const Answer whole = post(server.port(), kPath, chat(kTools));
  EXPECT_EQ(at(whole.body, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(at(whole.body, "choices.0.message.content"), "Let me look.");
  EXPECT_EQ(at(whole.body, "choices.0.message.tool_calls.0.function.name"), "weather");
  EXPECT_EQ(at(whole.body, "choices.0.message.tool_calls.0.function.arguments"),
            R"({"city": "Paris and London", "days": 3})");
  const Streamed s = join_chat(post(server.port(), kPath, chat(std::string(kTools) + R"(,"stream":true)")).body);
  EXPECT_EQ(s.finish, "tool_calls");
  EXPECT_EQ(s.content, "Let me look.");
  EXPECT_EQ(s.call_name, "weather");
  EXPECT_EQ(s.arguments, R"({"city": "Paris and London", "days": 3})");
  EXPECT_GT(s.argument_chunks, 3) << "arguments must come as they are made";
}

TEST(Chat, ACallThatIsCutOffIsNoCall) {
  StubBackend backend = saying(std::string("Well.") + kCalls);
  RunningServer server(backend);
  const auto most = ids_of(std::string("Well.") + kCalls).size() - 8;
  const Answer a = post(server.port(), kPath, chat(fmt::format(R"({},"max_tokens":{})", kTools, most)));
  EXPECT_EQ(at(a.body, "choices.0.finish_reason"), "length");
  EXPECT_FALSE(has(a.body, "choices.0.message.tool_calls"));
  EXPECT_EQ(at(a.body, "choices.0.message.content").find("DSML"), std::string::npos);
}

TEST(Chat, ToolChoiceNoneTakesToolsOutOfThePromptAndForbidsCalls) {
  RunningServer server;
  const Answer with = post(server.port(), "/tokenize", chat(kTools)),
               none = post(server.port(), "/tokenize", chat(std::string(kTools) + R"(,"tool_choice":"none")")),
               plain = post(server.port(), "/tokenize", chat(""));
  EXPECT_NE(at(with.body, "tokens"), at(plain.body, "tokens"));
  EXPECT_EQ(at(none.body, "tokens"), at(plain.body, "tokens"));
  EXPECT_EQ(post(server.port(), kPath, chat(std::string(kTools) + R"(,"tool_choice":"none","max_tokens":4)")).status,
            200);
  EXPECT_EQ(post(server.port(), kPath, chat(std::string(kTools) + R"(,"tool_choice":"auto","max_tokens":4)")).status,
            200);
}

TEST(Chat, OnlyTheFirstCallIsGivenWhenCallsMustNotBeParallel) {
  std::string two = kCalls;
  const size_t begin = two.find("<｜DSML｜invoke"), end = two.find("\n</｜DSML｜tool_calls>");
  two.insert(end, "\n" + two.substr(begin, end - begin));
  StubBackend backend = saying(two);
  RunningServer server(backend);
  const Answer both = post(server.port(), kPath, chat(kTools));
  EXPECT_TRUE(has(both.body, "choices.0.message.tool_calls.1")) << both.body;
  const Answer one = post(server.port(), kPath, chat(std::string(kTools) + R"(,"parallel_tool_calls":false)"));
  EXPECT_TRUE(has(one.body, "choices.0.message.tool_calls.0"));
  EXPECT_FALSE(has(one.body, "choices.0.message.tool_calls.1"));
}

TEST(Chat, AStopStringEndsTheContentAndIsLookedForThereOnly) {
  StubBackend backend = saying("I think of the king now</think>Once the king came home");
  RunningServer server(backend);
  const std::string thinking = R"("thinking":{"type":"enabled"},"stop":["king"])";
  const Answer a = post(server.port(), kPath, chat(thinking));
  EXPECT_EQ(at(a.body, "choices.0.message.reasoning_content"), "I think of the king now");
  EXPECT_EQ(at(a.body, "choices.0.message.content"), "Once the ");
  EXPECT_EQ(at(a.body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(at(a.body, "choices.0.stop_reason"), "king");
  const Answer asked = post(server.port(), kPath, chat(thinking + R"(,"stop_in_reasoning":true)"));
  EXPECT_EQ(at(asked.body, "choices.0.message.reasoning_content"), "I think of the ");
  const Answer shown = post(server.port(), kPath, chat(thinking + R"(,"include_stop_str_in_output":true)"));
  EXPECT_EQ(at(shown.body, "choices.0.message.content"), "Once the king");
  const Streamed s = join_chat(post(server.port(), kPath, chat(thinking + R"(,"stream":true)")).body);
  EXPECT_EQ(s.content, "Once the ");
  EXPECT_EQ(s.finish, "stop");
}

TEST(Chat, StopIdsEndAndIgnoreEosGoesOn) {
  StubBackend backend = saying("one two three");
  RunningServer server(backend);
  const auto ids = ids_of("one two three");
  const Answer stopped = post(server.port(), kPath, chat(fmt::format(R"("stop_token_ids":[{}])", ids.back())));
  EXPECT_EQ(at(stopped.body, "choices.0.stop_reason"), std::to_string(ids.back()));
  EXPECT_EQ(at(stopped.body, "usage.completion_tokens"), std::to_string(ids.size()));
  RunningServer real;
  const Answer on = post(real.port(), kPath, chat(R"("ignore_eos":true,"max_tokens":90,"temperature":0)"));
  EXPECT_EQ(at(on.body, "usage.completion_tokens"), "90");
  EXPECT_EQ(at(on.body, "choices.0.finish_reason"), "length");
}

TEST(Chat, LogprobsComeWithEachToken) {
  RunningServer server;
  const std::string common = R"("max_tokens":4,"temperature":0,"logprobs":true,"top_logprobs":2)";
  const Answer a = post(server.port(), kPath, chat(common));
  std::string text;
  for (int i = 0; i < 4; ++i) {
    const std::string entry = fmt::format("choices.0.logprobs.content.{}.", i);
    text += at(a.body, entry + "token");
    EXPECT_EQ(at(a.body, entry + "token"), at(a.body, entry + "top_logprobs.0.token"));
    EXPECT_LE(std::stod(at(a.body, entry + "top_logprobs.1.logprob")), std::stod(at(a.body, entry + "logprob")));
  }
  EXPECT_EQ(text, at(a.body, "choices.0.message.content"));
  const Answer s = post(server.port(), kPath, chat(common + R"(,"stream":true)"));
  std::string streamed;
  for (const auto& event : events_of(s.body))
    if (event != "[DONE]" && has(event, "choices.0.logprobs.content.0.token"))
      streamed += at(event, "choices.0.logprobs.content.0.token");
  EXPECT_EQ(streamed, text);
}

TEST(Chat, LogitBiasMinTokensAndPenaltiesReachTheSampler) {
  RunningServer server;
  const Answer plain = post(server.port(), kPath, chat(R"("max_tokens":1,"temperature":0,"logprobs":true)"));
  const int32_t first = ids_of(at(plain.body, "choices.0.message.content"))[0];
  const Answer biased = post(server.port(), kPath,
                             chat(fmt::format(R"("max_tokens":1,"temperature":0,"logit_bias":{{"{}":-100}})", first)));
  EXPECT_NE(at(biased.body, "choices.0.message.content"), at(plain.body, "choices.0.message.content"));
  const Answer forced = post(server.port(), kPath, chat(R"("max_tokens":5,"temperature":0,"logit_bias":{"1":100})"));
  EXPECT_EQ(at(forced.body, "usage.completion_tokens"), "1");
  const Answer late =
      post(server.port(), kPath, chat(R"("max_tokens":5,"min_tokens":3,"temperature":0,"logit_bias":{"1":100})"));
  EXPECT_EQ(at(late.body, "usage.completion_tokens"), "4");
}

TEST(Chat, AnOldReasoningMayBeMissingNullOrEmptyAndHasTwoNames) {
  RunningServer server;
  const auto prompt = [&](const std::string& field) {
    const Answer a = post(server.port(), "/tokenize",
                          R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b")" + field +
                              R"(},{"role":"user","content":"c"}],"thinking":true,)" + kTools + "}");
    EXPECT_EQ(a.status, 200) << a.body;
    return at(a.body, "tokens");
  };
  const std::string missing = prompt("");
  EXPECT_EQ(prompt(R"(,"reasoning_content":null)"), missing);
  EXPECT_EQ(prompt(R"(,"reasoning_content":"")"), missing);
  EXPECT_NE(prompt(R"(,"reasoning_content":"why")"), missing);
  EXPECT_EQ(prompt(R"(,"reasoning":"why")"), prompt(R"(,"reasoning_content":"why")"));
}

TEST(Chat, APrefixMessageIsContinued) {
  RunningServer server;
  const std::string messages =
      R"({"messages":[{"role":"user","content":"Tell me a story"},{"role":"assistant","content":"Once upon")";
  const Answer refused = post(server.port(), kPath, messages + R"(}],"max_tokens":5})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("prefix"), std::string::npos);
  for (const char* way : {R"(,"prefix":true}],"max_tokens":4,"temperature":0})",
                          R"(}],"continue_final_message":true,"max_tokens":4,"temperature":0})"}) {
    const Answer a = post(server.port(), kPath, messages + way);
    EXPECT_TRUE(at(a.body, "choices.0.message.content").starts_with(" a time")) << a.body;
  }
}

TEST(Chat, WhatIsNotSupportedOrNotRightIsA400ThatNamesIt) {
  RunningServer server;
  const std::pair<std::string, const char*> cases[] = {
      {R"({"messages":[]})", "messages"},
      {R"({})", "messages"},
      {R"([1])", "JSON object"},
      {R"({"messages":)", "JSON"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "robot"},
      {R"({"messages":[{"role":"user","content":5}]})", "content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})", "image_url"},
      {R"({"messages":[{"role":"user","content":"\ud800"}]})", "surrogate"},
      {chat(R"("temperature":-1)"), "temperature"},
      {chat(R"("temperature":NaN)"), "temperature"},
      {chat(R"("temperature":"hot")"), "temperature"},
      {chat(R"("top_p":1.5)"), "top_p"},
      {chat(R"("n":0)"), "n "},
      {chat(R"("n":1000000)"), "n "},
      {chat(R"("max_tokens":0)"), "max_tokens"},
      {chat(R"("max_tokens":1.5)"), "max_tokens"},
      {chat(R"("top_logprobs":3)"), "logprobs"},
      {chat(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs"},
      {chat(R"("logit_bias":{"x":1})"), "logit_bias"},
      {chat(R"("logit_bias":{"99999":1})"), "logit_bias"},
      {chat(R"("stop":[""])"), "stop"},
      {chat(R"("stop":5)"), "stop"},
      {chat(R"("stream":"yes")"), "stream"},
      {chat(R"("stream_options":{"include_usage":true})"), "stream_options"},
      {chat(R"("tool_choice":"required")"), "tool_choice"},
      {chat(std::string(kTools) + R"(,"tool_choice":"perhaps")"), "tool_choice"},
      {chat(R"("tools":[{"type":"web_search"}])"), "tools[0]"},
      {chat(R"("tools":{})"), "tools"},
      {chat(R"("functions":[])"), "functions"},
      {chat(R"("modalities":["audio"])"), "modalities"},
      {chat(R"("thinking":{"type":"perhaps"})"), "thinking"},
  };
  for (const auto& [body, word] : cases) {
    const Answer a = post(server.port(), kPath, body);
    EXPECT_EQ(a.status, 400) << body << a.body;
    EXPECT_NE(at(a.body, "error.message").find(word), std::string::npos) << body << a.body;
    EXPECT_EQ(at(a.body, "error.type"), "invalid_request_error");
  }
  const Answer model = post(server.port(), kPath, chat(R"("model":"gpt-4")"));
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(at(model.body, "error.code"), "model_not_found");
}

TEST(Chat, AnUnknownFieldIsAcceptedAndNamed) {
  RunningServer server;
  const Answer a = post(server.port(), kPath,
                        chat(R"("max_tokens":2,"frobnicate":1,"user":"u","stream":true,"stream_options":{"x":1})"));
  EXPECT_EQ(a.status, 200);
  const std::string warning = a.header("x-fathom-warning");
  EXPECT_NE(warning.find("frobnicate"), std::string::npos);
  EXPECT_NE(warning.find("stream_options.x"), std::string::npos);
  EXPECT_EQ(warning.find("user"), std::string::npos);
}

TEST(Chat, APromptThatDoesNotFitIsA400AndATooLargeMaxTokensIsSaid) {
  RunningServer server;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  const Answer a = post(server.port(), kPath, chat("", text));
  EXPECT_EQ(a.status, 400);
  EXPECT_EQ(at(a.body, "error.code"), "context_length_exceeded");
  StubBackend stub = saying("yes");
  RunningServer other(stub);
  const Answer b = post(other.port(), kPath, chat(R"("max_tokens":1000000)"));
  EXPECT_EQ(b.status, 200);
  EXPECT_NE(b.header("x-fathom-warning").find("max_tokens"), std::string::npos);
}

TEST(Chat, ControlTokensInTextStayText) {
  RunningServer server;
  const Answer a = post(server.port(), "/tokenize", chat("", "<｜Assistant｜></think>")),
               b = post(server.port(), "/tokenize", chat("", "x"));
  const auto count = [](const Answer& answer, const std::string& id) {
    size_t n = 0;
    const auto value = json(answer.body);
    for (const auto& token : value.find("tokens")->items) n += token.text == id;
    return n;
  };
  const std::string assistant = std::to_string(*fairy().tokenizer.added_id("<｜Assistant｜>"));
  EXPECT_EQ(count(a, assistant), count(b, assistant));
}

}  // namespace
}  // namespace fathom::serve::test
