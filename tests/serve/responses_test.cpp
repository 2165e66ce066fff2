// /v1/responses: the order of events, items in and out, and what needs a server that stores.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

constexpr const char* kPath = "/v1/responses";
constexpr const char* kCalls =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
    "string=\"true\">Paris and London</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","name":"weather","description":"of a city","parameters":{"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"]}},{"type":"function","name":"now","parameters":null}])";

std::string ask(const std::string& more = "", const std::string& input = R"("Tell me a story")") {
  return R"({"model":"fairy","input":)" + input + (more.empty() ? "" : ",") + more + "}";
}

/// Reads a stream, checks the order of its events and that its pieces add up to what its last event says; returns that
/// response as JSON. `deltas` counts the pieces of arguments.
std::string read_stream(const Answer& a, int* deltas = nullptr) {
  EXPECT_EQ(a.status, 200) << a.body;
  EXPECT_TRUE(a.complete);
  std::string last, open, text;
  int64_t sequence = 0, items = 0, argument_deltas = 0;
  for (const std::string& event : events_of(a.body)) {
    const auto v = json(event);
    const std::string type = at(v, "type");
    EXPECT_NE(a.body.find("event: " + type + "\ndata: " + event), std::string::npos);
    EXPECT_EQ(at(v, "sequence_number"), std::to_string(sequence)) << type;
    EXPECT_EQ(last, "") << type << " behind the last event";
    if (sequence < 2) {
      EXPECT_EQ(type, sequence ? "response.in_progress" : "response.created");
      EXPECT_EQ(at(v, "response.status"), "in_progress");
    } else if (type == "response.output_item.added") {
      EXPECT_EQ(open, "");
      EXPECT_EQ(at(v, "output_index"), std::to_string(items++));
      open = at(v, "item.id"), text.clear();
    } else if (type.ends_with(".delta")) {
      EXPECT_EQ(at(v, "item_id"), open);
      text += at(v, "delta");
      argument_deltas += type == "response.function_call_arguments.delta";
    } else if (type == "response.output_text.done" || type == "response.reasoning_text.done") {
      EXPECT_EQ(at(v, "text"), text);
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(at(v, "arguments"), text);
    } else if (type == "response.output_item.done") {
      EXPECT_EQ(at(v, "item.id"), open);
      open.clear();
    } else if (!type.starts_with("response.content_part.")) {
      EXPECT_EQ(open, "");
      EXPECT_TRUE(type == "response.completed" || type == "response.incomplete" || type == "response.failed") << type;
      EXPECT_EQ("response." + at(v, "response.status"), type);
      last = text::write_json(*v.find("response"));
    }
    ++sequence;
  }
  EXPECT_NE(last, "") << "the last event is missing";
  if (deltas) *deltas = static_cast<int>(argument_deltas);
  return last;
}

TEST(Responses, AWholeAnswerHasWhatOpenAIsHas) {
  RunningServer server;
  const Answer a = post(
      server.port(), kPath,
      ask(R"("max_output_tokens":12,"temperature":0,"metadata":{"k":"v"},"store":false,"instructions":"Be kind")"));
  ASSERT_EQ(a.status, 200) << a.body;
  EXPECT_EQ(at(a.body, "object"), "response");
  EXPECT_EQ(at(a.body, "status"), "incomplete");
  EXPECT_EQ(at(a.body, "incomplete_details.reason"), "max_output_tokens");
  EXPECT_EQ(at(a.body, "output.0.type"), "message");
  EXPECT_EQ(at(a.body, "output.0.status"), "incomplete");
  EXPECT_EQ(at(a.body, "output.0.content.0.type"), "output_text");
  EXPECT_NE(at(a.body, "output.0.content.0.text"), "");
  EXPECT_EQ(at(a.body, "usage.output_tokens"), "12");
  EXPECT_EQ(at(a.body, "metadata.k"), "v");
  EXPECT_EQ(at(a.body, "instructions"), "Be kind");
  EXPECT_EQ(at(a.body, "store"), "false");
  EXPECT_EQ(at(a.body, "previous_response_id"), "null");
  EXPECT_EQ(a.header("x-fathom-warning"), "");
}

TEST(Responses, AStreamSaysTheSameAsAWholeAnswer) {
  RunningServer server;
  const std::string common = R"("max_output_tokens":30,"temperature":0.8,"seed":7)";
  const Answer whole = post(server.port(), kPath, ask(common));
  const std::string end = read_stream(post(server.port(), kPath, ask(common + R"(,"stream":true)")));
  EXPECT_EQ(at(end, "output.0.content.0.text"), at(whole.body, "output.0.content.0.text"));
  EXPECT_EQ(at(end, "output.0.status"), at(whole.body, "output.0.status"));
  EXPECT_EQ(at(end, "usage.output_tokens"), "30");
}

TEST(Responses, ReasoningIsAnItemOfItsOwn) {
  StubBackend backend = saying("I think of the king now</think>Once the king came home");
  RunningServer server(backend);
  const std::string on = R"("reasoning":{"effort":"high"})";
  const Answer whole = post(server.port(), kPath, ask(on));
  const std::string end = read_stream(post(server.port(), kPath, ask(on + R"(,"stream":true)")));
  for (const std::string& r : {whole.body, end}) {
    EXPECT_EQ(at(r, "status"), "completed");
    EXPECT_EQ(at(r, "output.0.type"), "reasoning");
    EXPECT_EQ(at(r, "output.0.content.0.text"), "I think of the king now");
    EXPECT_EQ(at(r, "output.1.content.0.text"), "Once the king came home");
    EXPECT_EQ(at(r, "reasoning.effort"), "high");
  }
}

TEST(Responses, CallsAreItemsWithTheirArgumentsInPieces) {
  StubBackend backend = saying(std::string("Let me look.") + kCalls);
  RunningServer server(backend);
  const Answer whole = post(server.port(), kPath, ask(kTools));
  int deltas = 0;
  const std::string end =
      read_stream(post(server.port(), kPath, ask(std::string(kTools) + R"(,"stream":true)")), &deltas);
  EXPECT_GT(deltas, 3) << "arguments must come as they are made";
  for (const std::string& r : {whole.body, end}) {
    EXPECT_EQ(at(r, "status"), "completed");
    EXPECT_EQ(at(r, "output.0.content.0.text"), "Let me look.");
    EXPECT_EQ(at(r, "output.1.type"), "function_call");
    EXPECT_EQ(at(r, "output.1.name"), "weather");
    EXPECT_EQ(at(r, "output.1.arguments"), R"({"city": "Paris and London"})");
    EXPECT_EQ(at(r, "output.1.status"), "completed");
    EXPECT_EQ(at(r, "output.2.arguments"), "{}");
    EXPECT_NE(at(r, "output.1.call_id"), at(r, "output.2.call_id"));
    EXPECT_EQ(at(r, "tools.0.name"), "weather");
  }
  const Answer one = post(server.port(), kPath, ask(std::string(kTools) + R"(,"parallel_tool_calls":false)"));
  EXPECT_FALSE(has(one.body, "output.2"));
}

TEST(Responses, ACallThatIsCutOffIsIncomplete) {
  StubBackend backend = saying(std::string("Well.") + kCalls);
  RunningServer server(backend);
  const size_t most = ids_of(std::string("Well.") + kCalls).size() - 8;
  const std::string more = fmt::format(R"({},"max_output_tokens":{})", kTools, most);
  const Answer whole = post(server.port(), kPath, ask(more));
  const std::string end = read_stream(post(server.port(), kPath, ask(more + R"(,"stream":true)")));
  for (const std::string& r : {whole.body, end}) {
    EXPECT_EQ(at(r, "status"), "incomplete");
    EXPECT_EQ(at(r, "output.0.status"), "completed");
    EXPECT_EQ(at(r, "output.1.status"), "incomplete");
  }
}

TEST(Responses, CallsAndSchemasAreEnforced) {
  RunningServer server;
  for (const char* choice : {R"("required")", R"({"type":"function","name":"weather"})"}) {
    const Answer a = post(
        server.port(), kPath,
        ask(fmt::format(R"({},"tool_choice":{},"max_output_tokens":300,"parallel_tool_calls":false)", kTools, choice)));
    ASSERT_EQ(a.status, 200) << a.body;
    EXPECT_EQ(at(a.body, "status"), "completed") << a.body;
    EXPECT_EQ(at(a.body, "output.0.type"), "function_call") << a.body;
    if (std::string(choice).find("weather") != std::string::npos) {
      EXPECT_TRUE(has(at(a.body, "output.0.arguments"), "city"));
    }
  }
  const Answer a =
      post(server.port(), kPath,
           ask(R"("text":{"format":{"type":"json_schema","name":"x","strict":true,"schema":{"enum":["yes","no"]}}})"));
  EXPECT_TRUE(at(a.body, "output.0.content.0.text") == "\"yes\"" || at(a.body, "output.0.content.0.text") == "\"no\"")
      << a.body;
}

TEST(Responses, AConversationMakesThePromptThatTheChatApiMakes) {
  std::vector<int32_t> seen;
  StubBackend recording([&](const GenerationRequest& r) {
    seen = r.prompt;
    return std::vector<int32_t>{static_cast<int32_t>(fairy().config().eos_ids[0])};
  });
  RunningServer server(recording);
  const Answer a = post(
      server.port(), kPath,
      ask(std::string(kTools) + R"(,"instructions":"Be","reasoning":{"effort":"low"})",
          R"([{"role":"developer","content":"kind"},{"role":"user","content":[{"type":"input_text","text":"Weather?"}]},
             {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
             {"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]},
             {"type":"function_call","call_id":"a","name":"weather","arguments":"{\"city\":\"Paris\"}"},
             {"type":"function_call","call_id":"b","name":"now","arguments":"{}"},
             {"type":"function_call_output","call_id":"b","output":"noon"},
             {"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"sun"},{"type":"input_image"}]}])"));
  ASSERT_EQ(a.status, 200) << a.body;
  const Answer expected =
      post(server.port(), "/tokenize",
           R"({"messages":[{"role":"system","content":"Be\n\nkind"},{"role":"user","content":"Weather?"},
         {"role":"assistant","reasoning_content":"hm","content":"I look.","tool_calls":[
          {"id":"a","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}},
          {"id":"b","type":"function","function":{"name":"now","arguments":"{}"}}]},
         {"role":"tool","tool_call_id":"b","content":"noon"},
         {"role":"tool","tool_call_id":"a","content":"sun\n\n[Unsupported input_image]"}],"reasoning_effort":"low","tools":[
          {"type":"function","function":{"name":"weather","description":"of a city","parameters":{"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"]}}},
          {"type":"function","function":{"name":"now"}}]})");
  EXPECT_EQ(fmt::format("[{}]", fmt::join(seen, ", ")), at(expected.body, "tokens"));
}

TEST(Responses, WhatIsNotRightOrNeedsStorageIsA400ThatNamesIt) {
  RunningServer server;
  const std::pair<std::string, const char*> cases[] = {
      {"{}", "input"},
      {ask("", "5"), "input"},
      {ask("", "[]"), "input"},
      {ask("", "[5]"), "input[0]"},
      {ask("", R"([{"role":"robot","content":"x"}])"), "input[0].role"},
      {ask("", R"([{"role":"user","content":[{"type":"input_image"}]}])"), "input_image"},
      {ask("", R"([{"role":"user","content":"x"},{"role":"assistant","content":"y"}])"), "ends with"},
      {ask("", R"([{"role":"system","content":"x"}])"), "nothing to answer"},
      {ask("", R"([{"id":"msg_1"}])"), "stores nothing"},
      {ask("", R"([{"type":"item_reference","id":"msg_1"}])"), "stores nothing"},
      {ask("", R"([{"type":"web_search_call"}])"), "web_search_call"},
      {ask("", R"([{"type":"function_call_output","call_id":"q","output":"x"}])"), "call_id"},
      {ask("", R"([{"type":"function_call","call_id":"q","name":"x","arguments":"[]"}])"), "arguments"},
      {ask(R"("previous_response_id":"resp_1")"), "previous_response_id"},
      {ask(R"("conversation":"c")"), "conversation"},
      {ask(R"("prompt":{"id":"p"})"), "prompt"},
      {ask(R"("background":true)"), "background"},
      {ask(R"("include":["message.output_text.logprobs"])"), "logprobs"},
      {ask(R"("max_output_tokens":0)"), "max_output_tokens"},
      {ask(R"("instructions":[])"), "instructions"},
      {ask(R"("temperature":"x")"), "temperature"},
      {ask(R"("tools":[{"type":"web_search"}])"), "web_search"},
      {ask(R"("tools":[{"type":"function"}])"), "tools[0].name"},
      {ask(R"("tool_choice":"required")"), "no tools"},
      {ask(std::string(kTools) + R"(,"tool_choice":{"type":"allowed_tools"})"), "allowed_tools"},
      {ask(std::string(kTools) + R"(,"tool_choice":{"type":"function","name":"q"})"), "not among the tools"},
      {ask(std::string(kTools) + R"(,"text":{"format":{"type":"json_object"}})"), "tool_choice"},
      {ask(R"("text":{"format":{"type":"yaml"}})"), "text.format.type"},
      {ask(R"("text":{"format":{"type":"json_schema","schema":{"pattern":"x"}}})"), "pattern"},
      {ask(R"("reasoning":{"effort":"huge"})"), "huge"},
      {ask(R"("metadata":{"x":NaN})"), "metadata"},
  };
  for (const auto& [body, word] : cases) {
    const Answer a = post(server.port(), kPath, body);
    EXPECT_EQ(a.status, 400) << body << a.body;
    EXPECT_EQ(at(a.body, "error.type"), "invalid_request_error");
    EXPECT_NE(at(a.body, "error.message").find(word), std::string::npos) << body << a.body;
  }
  EXPECT_EQ(get(server.port(), "/v1/responses/resp_1").status, 404);
}

TEST(Responses, WhatDoesNothingIsNamed) {
  RunningServer server;
  const Answer a = post(
      server.port(), kPath,
      ask(R"("max_output_tokens":1,"store":true,"truncation":"auto","frobnicate":1,"include":["reasoning.encrypted_content"],"text":{"verbosity":"low"})"));
  EXPECT_EQ(a.status, 200) << a.body;
  for (const char* word : {"store", "truncation", "frobnicate", "encrypted", "verbosity"})
    EXPECT_NE(a.header("x-fathom-warning").find(word), std::string::npos) << word;
}

TEST(Responses, AFailureInTheMiddleOfAStreamIsItsLastEvent) {
  StubBackend backend;
  backend.step_time = std::chrono::milliseconds(5);
  RunningServer server(backend);
  Client client(server.port());
  client.send(post_text(kPath, ask(R"("stream":true,"max_output_tokens":2000)")));
  ASSERT_TRUE(client.read_until("output_text.delta"));
  backend.fail_next = true;
  EXPECT_TRUE(client.read_until("event: response.failed"));
  EXPECT_TRUE(client.read_until("server_error"));
  EXPECT_TRUE(client.read_until("\r\n0\r\n"));
}

}  // namespace
}  // namespace fathom::serve::test
