// Every value of tool_choice, with and without thinking, whole and streamed: the same answer, in the form that was
// asked for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

struct Wish {
  const char* name;
  const char* choice;  // JSON
  bool call;           // one must come
  bool none;           // none may
};

class ToolChoice : public testing::TestWithParam<std::tuple<Wish, bool>> {};

TEST_P(ToolChoice, IsKeptWithAndWithoutThinkingWholeAndStreamed) {
  const Wish wish = std::get<0>(GetParam());
  const bool thinking = std::get<1>(GetParam());
  RunningServer server;
  const auto body = [&](bool stream) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":"Tell me a story"}}],"temperature":0,"max_tokens":300,"parallel_tool_calls":false,"stream":{},)"
        R"("thinking":{{"type":"{}"{}}},"tool_choice":{},"tools":[{{"type":"function","function":{{"name":"weather",)"
        R"("parameters":{{"type":"object","properties":{{"place":{{"type":"string","enum":["Rome","Oslo"]}}}},)"
        R"("required":["place"],"additionalProperties":false}}}}}}]}})",
        stream, thinking ? "enabled" : "disabled", thinking ? R"(,"budget_tokens":5)" : "", wish.choice);
  };
  const Answer whole = post(server.port(), "/v1/chat/completions", body(false));
  ASSERT_EQ(whole.status, 200) << whole.body;
  const std::string message = "choices.0.message.", finish = at(whole.body, "choices.0.finish_reason");
  EXPECT_EQ(has(whole.body, message + "reasoning_content"), thinking);
  const bool called = has(whole.body, message + "tool_calls");
  if (wish.call) {
    ASSERT_TRUE(called) << whole.body;
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_EQ(at(whole.body, message + "tool_calls.0.function.name"), "weather");
    EXPECT_TRUE(has(at(whole.body, message + "tool_calls.0.function.arguments"), "place"));
    EXPECT_EQ(at(whole.body, message + "content"), "null");
  } else if (wish.none) {
    EXPECT_FALSE(called);
  }
  const Streamed stream = join_chat(post(server.port(), "/v1/chat/completions", body(true)).body);
  EXPECT_TRUE(stream.done);
  EXPECT_EQ(stream.finish, finish);
  EXPECT_EQ(stream.reasoning, thinking ? at(whole.body, message + "reasoning_content") : "");
  EXPECT_EQ(stream.content, called ? "" : at(whole.body, message + "content"));
  if (!wish.call) return;
  EXPECT_EQ(stream.call_name.substr(0, 7), "weather");
  EXPECT_GT(stream.argument_chunks, 1) << "arguments come as they are written";
}

INSTANTIATE_TEST_SUITE_P(
    All, ToolChoice,
    testing::Combine(testing::Values(Wish{"auto", R"("auto")", false, false}, Wish{"none", R"("none")", false, true},
                                     Wish{"required", R"("required")", true, false},
                                     Wish{"named", R"({"type":"function","function":{"name":"weather"}})", true,
                                          false}),
                     testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Thinking" : "");
    });

}  // namespace
}  // namespace fathom::serve::test
