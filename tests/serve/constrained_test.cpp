// response_format and tool_choice: whatever the model would like to say, the output has its form.
#include <gtest/gtest.h>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome"]},"days":{"type":"integer"}},"required":["city","days"]}}},{"type":"function","function":{"name":"now"}}])";

std::string chat(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Tell me a story"}],"max_tokens":400,)" + more + "}";
}

TEST(Constrained, AJsonSchemaIsKept) {
  RunningServer server;
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"hero","strict":true,"schema":{"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer"},"kind":{"enum":["king","fox"]}},"required":["name","age","kind"],"additionalProperties":false}}})";
  for (const char* sampling :
       {R"("temperature":0,)", R"("temperature":1,"seed":5,)", R"("temperature":1.5,"seed":6,"min_tokens":300,)"}) {
    const Answer a = post(server.port(), kPath, chat(sampling + format));
    ASSERT_EQ(a.status, 200) << a.body;
    EXPECT_EQ(at(a.body, "choices.0.finish_reason"), "stop");
    const std::string content = at(a.body, "choices.0.message.content");
    EXPECT_FALSE(at(content, "name").empty() && content.find("\"\"") == content.npos) << content;
    EXPECT_TRUE(has(content, "age")) << content;
    EXPECT_TRUE(at(content, "kind") == "king" || at(content, "kind") == "fox") << content;
  }
}

TEST(Constrained, TheThinkingStaysFree) {
  RunningServer server;
  const Answer a = post(
      server.port(), kPath,
      chat(
          R"("thinking":{"type":"enabled","budget_tokens":8},"temperature":0,"response_format":{"type":"json_schema","json_schema":{"schema":{"enum":["yes"]}}})"));
  ASSERT_EQ(a.status, 200) << a.body;
  EXPECT_FALSE(at(a.body, "choices.0.message.reasoning_content").empty());
  EXPECT_EQ(at(a.body, "choices.0.message.content"), "\"yes\"");
}

TEST(Constrained, ACallCanBeRequired) {
  RunningServer server;
  for (const char* choice :
       {R"("tool_choice":"required")", R"("tool_choice":{"type":"function","function":{"name":"weather"}})"}) {
    const Answer a =
        post(server.port(), kPath,
             chat(std::string(kTools) + R"(,"parallel_tool_calls":false,"temperature":1,"seed":3,)" + choice));
    ASSERT_EQ(a.status, 200) << a.body;
    EXPECT_EQ(at(a.body, "choices.0.finish_reason"), "tool_calls") << a.body;
    const std::string name = at(a.body, "choices.0.message.tool_calls.0.function.name");
    const std::string arguments = at(a.body, "choices.0.message.tool_calls.0.function.arguments");
    EXPECT_TRUE(name == "weather" || name == "now") << a.body;
    if (std::string(choice).find("weather") != std::string::npos) {
      EXPECT_EQ(name, "weather");
      EXPECT_TRUE(at(arguments, "city") == "Paris" || at(arguments, "city") == "Rome") << arguments;
      EXPECT_TRUE(has(arguments, "days")) << arguments;
    }
    EXPECT_FALSE(has(a.body, "choices.0.message.tool_calls.1"));
  }
}

TEST(Constrained, AStreamHasTheSameForm) {
  RunningServer server;
  const Answer a = post(
      server.port(), kPath,
      chat(
          R"("stream":true,"temperature":1,"seed":9,"n":2,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array","items":{"type":"boolean"},"minItems":3,"maxItems":3}}})"));
  for (const int choice : {0, 1}) {
    const Streamed s = join_chat(a.body, choice);
    EXPECT_EQ(s.finish, "stop");
    EXPECT_TRUE(has(s.content, "2")) << s.content;
    EXPECT_FALSE(has(s.content, "3")) << s.content;
  }
}

TEST(Constrained, WhatCannotBeEnforcedIsRefusedWithItsPlace) {
  RunningServer server;
  struct {
    std::string body, says;
  } const cases[] = {
      {chat(
           R"("response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"pattern":"x"}}}}})"),
       "#/properties/a: pattern is not supported"},
      {chat(R"("response_format":{"type":"json_schema"})"), "json_schema.schema"},
      {chat(R"("response_format":{"type":"yaml"})"), "response_format"},
      {chat(R"("response_format":{"type":"json_object"},"ignore_eos":true)"), "ignore_eos"},
      {chat(std::string(kTools) + R"(,"response_format":{"type":"json_object"})"), "tool_choice"},
      {chat(R"("tool_choice":"required")"), "no tools"},
      {chat(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"x"}})"),
       "not among the tools"},
      {chat(std::string(kTools) + R"(,"tool_choice":{"type":"function"})"), "tool_choice"},
  };
  for (const auto& c : cases) {
    const Answer a = post(server.port(), kPath, c.body);
    EXPECT_EQ(a.status, 400) << c.body;
    EXPECT_NE(a.body.find(c.says), std::string::npos) << a.body;
  }
}

}  // namespace
}  // namespace fathom::serve::test
