// /v1/messages: the order of events, blocks, tools and back, errors in Anthropic's form.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

constexpr const char* kPath = "/v1/messages";
constexpr const char* kCalls =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
    "string=\"true\">Paris and London</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
    "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
constexpr const char* kTools =
    R"("tools":[{"name":"weather","description":"of a city","input_schema":{"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome"]}},"required":["city"]}},{"type":"custom","name":"now","input_schema":{"type":"object"}}])";

std::string ask(const std::string& more = "", int max_tokens = 300) {
  return fmt::format(
      R"({{"model":"fairy","max_tokens":{},"messages":[{{"role":"user","content":"Tell me a story"}}]{}{}}})",
      max_tokens, more.empty() ? "" : ",", more);
}

std::string with_messages(const std::string& messages, const std::string& more = "") {
  return R"({"max_tokens":20,"messages":[)" + messages + "]" + (more.empty() ? "" : ",") + more + "}";
}

struct Block {
  std::string type, text, id, name;
  int64_t deltas = 0;
};
struct Message {
  std::vector<Block> blocks;
  std::string stop_reason, stop_sequence, error;
  int64_t input = -1, output = -1;
};

/// Reads a stream and checks that its events come in an order that the API allows.
Message read_stream(const Answer& a) {
  Message m;
  EXPECT_EQ(a.status, 200) << a.body;
  EXPECT_EQ(a.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(a.complete);
  std::string names;
  for (size_t at = a.body.find("event: "); at != a.body.npos; at = a.body.find("\nevent: ", at + 1)) {
    const size_t begin = at + (at ? 8 : 7);
    names += a.body.substr(begin, a.body.find('\n', begin) - begin) + " ";
  }
  std::string types, state = "nothing";
  for (const std::string& event : events_of(a.body)) {
    const auto v = json(event);
    const std::string type = at(v, "type");
    types += type + " ";
    EXPECT_NE(state, "stopped") << type << " behind the end";
    if (type == "message_start") {
      EXPECT_EQ(state, "nothing");
      EXPECT_EQ(at(v, "message.role"), "assistant");
      EXPECT_EQ(at(v, "message.content"), "[]");
      EXPECT_EQ(at(v, "message.stop_reason"), "null");
      EXPECT_EQ(at(v, "message.usage.output_tokens"), "0");
      state = "between";
    } else if (type == "content_block_start") {
      EXPECT_EQ(state, "between");
      EXPECT_EQ(at(v, "index"), std::to_string(m.blocks.size()));
      m.blocks.push_back({.type = at(v, "content_block.type")});
      if (m.blocks.back().type == "tool_use") {
        m.blocks.back().id = at(v, "content_block.id"), m.blocks.back().name = at(v, "content_block.name");
        EXPECT_EQ(at(v, "content_block.input"), "{}");
      }
      state = "block";
    } else if (type == "content_block_delta") {
      EXPECT_EQ(state, "block");
      EXPECT_EQ(at(v, "index"), std::to_string(m.blocks.size() - 1));
      Block& b = m.blocks.back();
      const std::string kind = at(v, "delta.type");
      if (kind == "signature_delta") {
        EXPECT_EQ(b.type, "thinking");
        continue;
      }
      EXPECT_EQ(kind, b.type == "tool_use" ? "input_json_delta" : b.type + "_delta");
      b.text += at(v, b.type == "tool_use" ? "delta.partial_json" : "delta." + b.type);
      ++b.deltas;
    } else if (type == "content_block_stop") {
      EXPECT_EQ(state, "block");
      state = "between";
    } else if (type == "message_delta") {
      EXPECT_EQ(state, "between");
      m.stop_reason = at(v, "delta.stop_reason"), m.stop_sequence = at(v, "delta.stop_sequence");
      m.input = std::stoll(at(v, "usage.input_tokens")) + std::stoll(at(v, "usage.cache_read_input_tokens"));
      m.output = std::stoll(at(v, "usage.output_tokens"));
      state = "ended";
    } else if (type == "message_stop") {
      EXPECT_EQ(state, "ended");
      state = "stopped";
    } else if (type == "error") {
      m.error = at(v, "error.type");
      state = "stopped";
    } else {
      EXPECT_EQ(type, "ping");
    }
  }
  EXPECT_EQ(state, "stopped") << "the last event is missing";
  EXPECT_EQ(names, types) << "event names and types differ";
  return m;
}

TEST(Messages, AWholeAnswerHasWhatAnthropicsHas) {
  RunningServer server;
  const Answer a = post(server.port(), kPath, ask(R"("temperature":0,"metadata":{"user_id":"u"})", 12),
                        "anthropic-version: 2023-06-01\r\n");
  ASSERT_EQ(a.status, 200) << a.body;
  EXPECT_EQ(at(a.body, "type"), "message");
  EXPECT_EQ(at(a.body, "role"), "assistant");
  EXPECT_EQ(at(a.body, "model"), "fairy");
  EXPECT_EQ(at(a.body, "content.0.type"), "text");
  EXPECT_TRUE(at(a.body, "content.0.text").starts_with("Once upon a time"));
  EXPECT_EQ(at(a.body, "stop_reason"), "max_tokens");
  EXPECT_EQ(at(a.body, "stop_sequence"), "null");
  EXPECT_EQ(at(a.body, "usage.output_tokens"), "12");
  EXPECT_TRUE(at(a.body, "id").starts_with("msg_"));
  EXPECT_EQ(a.header("x-fathom-warning"), "");
  EXPECT_EQ(a.header("request-id"), a.header("x-request-id"));
}

TEST(Messages, AStreamSaysTheSameAsAWholeAnswer) {
  RunningServer server;
  const std::string common = R"("temperature":0.8,"seed":7,"top_k":50,"top_p":0.9)";
  const Answer whole = post(server.port(), kPath, ask(common, 30));
  const Message m = read_stream(post(server.port(), kPath, ask(common + R"(,"stream":true)", 30)));
  ASSERT_EQ(m.blocks.size(), 1u);
  EXPECT_EQ(m.blocks[0].text, at(whole.body, "content.0.text"));
  EXPECT_GT(m.blocks[0].deltas, 5);
  EXPECT_EQ(m.stop_reason, "max_tokens");
  EXPECT_EQ(m.output, 30);
  EXPECT_EQ(m.input, std::stoll(at(whole.body, "usage.input_tokens")) +
                         std::stoll(at(whole.body, "usage.cache_read_input_tokens")));
}

TEST(Messages, ThinkingComesInABlockOfItsOwnBeforeTheText) {
  StubBackend backend = saying("I think of the king now</think>Once the king came home");
  RunningServer server(backend);
  const std::string on = R"("thinking":{"type":"enabled","budget_tokens":1024})";
  const Message m = read_stream(post(server.port(), kPath, ask(on + R"(,"stream":true)")));
  ASSERT_EQ(m.blocks.size(), 2u);
  EXPECT_EQ(m.blocks[0].type, "thinking");
  EXPECT_EQ(m.blocks[0].text, "I think of the king now");
  EXPECT_EQ(m.blocks[1].text, "Once the king came home");
  EXPECT_EQ(m.stop_reason, "end_turn");
  const Answer whole = post(server.port(), kPath, ask(on));
  EXPECT_EQ(at(whole.body, "content.0.thinking"), "I think of the king now");
  EXPECT_NE(at(whole.body, "content.0.signature"), "");
  EXPECT_EQ(at(whole.body, "content.1.text"), "Once the king came home");
  RunningServer real;
  const Answer budget =
      post(real.port(), kPath, ask(R"("thinking":{"type":"enabled","budget_tokens":3},"temperature":0)", 20));
  EXPECT_EQ(at(budget.body, "usage.output_tokens_details.thinking_tokens"), "4");  // three and </think>
  EXPECT_EQ(at(budget.body, "content.1.type"), "text");
}

TEST(Messages, StopSequencesEndTheTextAndAreNamed) {
  StubBackend backend = saying("I think of the king</think>Once the king came home");
  RunningServer server(backend);
  const std::string more = R"("thinking":{"type":"adaptive"},"stop_sequences":["queen","king"])";
  const Answer whole = post(server.port(), kPath, ask(more));
  EXPECT_EQ(at(whole.body, "content.1.text"), "Once the ");
  EXPECT_EQ(at(whole.body, "stop_reason"), "stop_sequence");
  EXPECT_EQ(at(whole.body, "stop_sequence"), "king");
  const Message m = read_stream(post(server.port(), kPath, ask(more + R"(,"stream":true)")));
  ASSERT_EQ(m.blocks.size(), 2u);
  EXPECT_EQ(m.blocks[1].text, "Once the ");
  EXPECT_EQ(m.stop_sequence, "king");
}

TEST(Messages, CallsComeAsBlocksWithTheirInputInPieces) {
  StubBackend backend = saying(std::string("Let me look.") + kCalls);
  RunningServer server(backend);
  const Answer whole = post(server.port(), kPath, ask(kTools));
  EXPECT_EQ(at(whole.body, "stop_reason"), "tool_use");
  EXPECT_EQ(at(whole.body, "content.0.text"), "Let me look.");
  EXPECT_EQ(at(whole.body, "content.1.type"), "tool_use");
  EXPECT_EQ(at(whole.body, "content.1.input.city"), "Paris and London");
  EXPECT_EQ(at(whole.body, "content.1.input.days"), "3");
  EXPECT_EQ(at(whole.body, "content.2.name"), "now");
  EXPECT_NE(at(whole.body, "content.1.id"), at(whole.body, "content.2.id"));
  const Message m = read_stream(post(server.port(), kPath, ask(std::string(kTools) + R"(,"stream":true)")));
  ASSERT_EQ(m.blocks.size(), 3u);
  EXPECT_EQ(m.blocks[1].name, "weather");
  EXPECT_EQ(m.blocks[1].text, R"({"city": "Paris and London", "days": 3})");
  EXPECT_GT(m.blocks[1].deltas, 3) << "the input must come as it is made";
  EXPECT_EQ(m.blocks[2].text, "{}");
  EXPECT_EQ(m.stop_reason, "tool_use");
  const Answer one =
      post(server.port(), kPath,
           ask(std::string(kTools) + R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})"));
  EXPECT_TRUE(has(one.body, "content.1.input"));
  EXPECT_FALSE(has(one.body, "content.2"));
}

TEST(Messages, ACallThatIsCutOffIsNoCall) {
  StubBackend backend = saying(std::string("Well.") + kCalls);
  RunningServer server(backend);
  const int most = static_cast<int>(ids_of(std::string("Well.") + kCalls).size()) - 8;
  const Answer whole = post(server.port(), kPath, ask(kTools, most));
  EXPECT_EQ(at(whole.body, "stop_reason"), "max_tokens");
  EXPECT_FALSE(has(whole.body, "content.1"));
  const Message m = read_stream(post(server.port(), kPath, ask(std::string(kTools) + R"(,"stream":true)", most)));
  EXPECT_EQ(m.stop_reason, "max_tokens");
}

TEST(Messages, ACallCanBeRequiredAndForbidden) {
  RunningServer server;
  for (const char* choice :
       {R"({"type":"any","disable_parallel_tool_use":true})", R"({"type":"tool","name":"weather"})"})
    for (const char* thinking : {R"({"type":"disabled"})", R"({"type":"enabled","budget_tokens":5})"}) {
      const std::string more =
          fmt::format(R"({},"temperature":1,"seed":3,"tool_choice":{},"thinking":{})", kTools, choice, thinking);
      const Message m = read_stream(post(server.port(), kPath, ask(more + R"(,"stream":true)")));
      EXPECT_EQ(m.stop_reason, "tool_use") << more;
      ASSERT_FALSE(m.blocks.empty());
      const Block& b = m.blocks.back();
      ASSERT_EQ(b.type, "tool_use");
      if (std::string(choice).find("weather") != std::string::npos) {
        EXPECT_EQ(b.name, "weather");
      }
      if (b.name == "weather") {
        EXPECT_TRUE(at(b.text, "city") == "Paris" || at(b.text, "city") == "Rome") << b.text;
      }
    }
  const auto count = [&](const std::string& more) {
    return at(post(server.port(), "/v1/messages/count_tokens", ask(more)).body, "input_tokens");
  };
  EXPECT_EQ(count(std::string(kTools) + R"(,"tool_choice":{"type":"none"})"), count(""));
  EXPECT_NE(count(kTools), count(""));
  const Answer none = post(server.port(), kPath, ask(std::string(kTools) + R"(,"tool_choice":{"type":"none"})", 5));
  EXPECT_EQ(at(none.body, "content.0.type"), "text");
}

TEST(Messages, AJsonSchemaIsKept) {
  RunningServer server;
  const Answer a = post(server.port(), kPath,
                        ask(R"("output_config":{"format":{"type":"json_schema","schema":{"enum":["yes","no"]}}})"));
  ASSERT_EQ(a.status, 200) << a.body;
  EXPECT_TRUE(at(a.body, "content.0.text") == "\"yes\"" || at(a.body, "content.0.text") == "\"no\"") << a.body;
  EXPECT_EQ(at(a.body, "stop_reason"), "end_turn");
}

TEST(Messages, AConversationMakesThePromptThatTheChatApiMakes) {
  RunningServer server;
  const std::string messages = with_messages(
      R"({"role":"user","content":[{"type":"text","text":"Weather?","cache_control":{"type":"ephemeral"}}]},
         {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"I look."},
          {"type":"tool_use","id":"a","name":"weather","input":{"city":"Paris","n":1e3}},{"type":"tool_use","id":"b","name":"now","input":{}}]},
         {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"noon"},
          {"type":"tool_result","tool_use_id":"a","is_error":true,"content":[{"type":"text","text":"no"},{"type":"image","source":{}}]},
          {"type":"text","text":"So?"}]})",
      R"("system":[{"type":"text","text":"Be"},{"type":"text","text":"kind"}],"thinking":{"type":"enabled"},)" +
          std::string(kTools));
  const std::string chat =
      R"({"messages":[{"role":"system","content":"Be\n\nkind"},{"role":"user","content":"Weather?"},
         {"role":"assistant","reasoning_content":"hm","content":"I look.","tool_calls":[
          {"id":"a","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\",\"n\":1e3}"}},
          {"id":"b","type":"function","function":{"name":"now","arguments":"{}"}}]},
         {"role":"tool","tool_call_id":"b","content":"noon"},
         {"role":"tool","tool_call_id":"a","content":"Error: no\n\n[Unsupported image]"},{"role":"user","content":"So?"}],
        "thinking":true,"tools":[
          {"type":"function","function":{"name":"weather","description":"of a city","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome"]}},"required":["city"]}}},
          {"type":"function","function":{"name":"now","parameters":{"type":"object"}}}]})";
  std::vector<int32_t> seen;
  StubBackend recording([&](const GenerationRequest& r) {
    seen = r.prompt;
    return std::vector<int32_t>{static_cast<int32_t>(fairy().config().eos_ids[0])};
  });
  RunningServer stub(recording);
  const Answer a = post(stub.port(), kPath, messages);
  ASSERT_EQ(a.status, 200) << a.body;
  EXPECT_NE(a.header("x-fathom-warning").find("image"), std::string::npos);
  const Answer expected = post(server.port(), "/tokenize", chat);
  EXPECT_EQ(fmt::format("[{}]", fmt::join(seen, ", ")), at(expected.body, "tokens"));
  EXPECT_EQ(at(post(server.port(), "/v1/messages/count_tokens", messages).body, "input_tokens"),
            std::to_string(seen.size()));
}

TEST(Messages, ALastMessageOfTheAssistantIsContinued) {
  RunningServer server;
  const Answer a =
      post(server.port(), kPath,
           with_messages(R"({"role":"user","content":"Tell me a story"},{"role":"assistant","content":"Once upon"})",
                         R"("temperature":0)"));
  EXPECT_TRUE(at(a.body, "content.0.text").starts_with(" a time")) << a.body;
}

TEST(Messages, WhatIsNotRightIsAnErrorInAnthropicsFormThatNamesIt) {
  RunningServer server;
  const std::string call =
      R"({"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"now","input":{}}]})";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"messages":[{"role":"user","content":"x"}]})", "max_tokens"},
      {R"({"max_tokens":5})", "messages"},
      {R"([])", "JSON object"},
      {R"({"max_tokens":)", "JSON"},
      {with_messages(""), "messages"},
      {with_messages("5"), "messages[0]"},
      {with_messages(R"({"role":"robot","content":"x"})"), "messages[0].role"},
      {with_messages(R"({"role":"assistant","content":"x"})"), "first message"},
      {with_messages(R"({"role":"user","content":5})"), "messages[0].content"},
      {with_messages(R"({"role":"user","content":[]})"), "messages[0].content"},
      {with_messages(R"({"role":"user","content":[{"text":"x"}]})"), "type"},
      {with_messages(R"({"role":"user","content":[{"type":"image","source":{}}]})"), "image"},
      {with_messages(R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"q"}]})"), "tool_use_id"},
      {with_messages(call), "tool_result must follow"},
      {with_messages(
           R"({"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"n","input":"{}"}]})"),
       "input"},
      {ask(R"("system":[{"type":"image"}])"), "system[0]"},
      {ask(R"("temperature":-1)"), "temperature"},
      {ask(R"("top_k":"x")"), "top_k"},
      {ask(R"("n":2)"), "n other"},
      {ask(R"("stop_sequences":[""])"), "stop_sequences"},
      {ask(R"("thinking":{"type":"perhaps"})"), "thinking.type"},
      {ask(R"("thinking":true)"), "thinking"},
      {ask(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"), "tools[0].type"},
      {ask(R"("tools":[{"name":"x"}])"), "input_schema"},
      {ask(R"("tool_choice":{"type":"any"})"), "no tools"},
      {ask(std::string(kTools) + R"(,"tool_choice":"any")"), "tool_choice"},
      {ask(std::string(kTools) + R"(,"tool_choice":{"type":"tool","name":"q"})"), "not among the tools"},
      {ask(std::string(kTools) + R"(,"output_config":{"format":{"type":"json_schema","schema":{}}})"), "tool_choice"},
      {ask(R"("output_config":{"format":{"type":"json_schema","schema":{"pattern":"x"}}})"), "pattern"},
      {ask(R"("output_config":{"effort":"huge"})"), "huge"},
      {ask(R"("mcp_servers":[{}])"), "mcp_servers"},
  };
  for (const auto& [body, word] : cases) {
    const Answer a = post(server.port(), kPath, body);
    EXPECT_EQ(a.status, 400) << body << a.body;
    EXPECT_EQ(at(a.body, "type"), "error");
    EXPECT_EQ(at(a.body, "error.type"), "invalid_request_error");
    EXPECT_NE(at(a.body, "error.message").find(word), std::string::npos) << body << a.body;
  }
  EXPECT_EQ(at(post(server.port(), kPath, R"({"model":"gpt","max_tokens":1,"messages":[]})").body, "error.type"),
            "not_found_error");
  EXPECT_EQ(at(post(server.port(), "/v1/messages/batches", "{}").body, "error.type"), "not_found_error");
  EXPECT_EQ(at(get(server.port(), kPath).body, "type"), "error");
}

TEST(Messages, AnUnknownFieldIsAcceptedAndNamedOnce) {
  RunningServer server;
  const Answer a = post(
      server.port(), kPath,
      with_messages(R"({"role":"user","content":[{"type":"text","text":"a","x":1},{"type":"text","text":"b","x":1}]})",
                    R"("frobnicate":1,"cache_control":{"type":"ephemeral"})"));
  EXPECT_EQ(a.status, 200) << a.body;
  const std::string warning = a.header("x-fathom-warning");
  EXPECT_NE(warning.find("frobnicate"), std::string::npos);
  EXPECT_NE(warning.find("messages[].content[].x"), std::string::npos) << warning;
  EXPECT_EQ(warning.find("messages[].content[].x"), warning.rfind("messages[].content[].x"));
  EXPECT_EQ(warning.find("cache_control"), std::string::npos);
}

TEST(Messages, ModelsHaveWhatAnthropicsHaveToo) {
  RunningServer server;
  const Answer a = get(server.port(), "/v1/models", "anthropic-version: 2023-06-01\r\n");
  EXPECT_EQ(at(a.body, "data.0.type"), "model");
  EXPECT_EQ(at(a.body, "data.0.display_name"), "fairy");
  EXPECT_EQ(at(a.body, "data.0.created_at"), "1970-01-01T00:00:01Z");
  EXPECT_EQ(at(a.body, "data.0.owned_by"), "fathom");
  EXPECT_EQ(at(a.body, "has_more"), "false");
  EXPECT_EQ(at(a.body, "last_id"), "other-name");
}

TEST(Messages, TextsOfTheSystemAreOneMessage) {
  RunningServer server;
  const auto count = [&](const std::string& body) {
    return at(post(server.port(), "/v1/messages/count_tokens", body).body, "input_tokens");
  };
  const std::string user = R"({"role":"user","content":"Hi"})";
  EXPECT_EQ(count(with_messages(R"({"role":"system","content":"kind"},)" + user, R"("system":"Be")")),
            count(with_messages(user, R"("system":"Be\n\nkind")")));
}

TEST(Messages, KeysAreAskedForInBothHeaders) {
  ServeOptions options = quiet_options();
  options.api_keys = {"secret"};
  RunningServer server(options);
  const Answer refused = post(server.port(), kPath, ask("", 1), "x-api-key: wrong\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(at(refused.body, "error.type"), "authentication_error");
  EXPECT_EQ(post(server.port(), kPath, ask("", 1), "x-api-key: secret\r\n").status, 200);
  EXPECT_EQ(post(server.port(), kPath, ask("", 1), "authorization: Bearer secret\r\n").status, 200);
}

TEST(Messages, ErrorsOfEveryLayerHaveAnthropicsForm) {
  StubBackend backend(StubBackend::counting, 1);
  backend.paused = true;
  ServeOptions options = quiet_options();
  options.api_keys = {"secret"}, options.max_waiting = 0, options.max_body_mib = 1;
  RunningServer server(backend, options);
  const std::string key = "x-api-key: secret\r\n";
  const auto check = [](const Answer& a, int status, const std::string& type) {
    EXPECT_EQ(a.status, status);
    EXPECT_EQ(at(a.body, "type"), "error") << a.body;
    EXPECT_EQ(at(a.body, "error.type"), type) << a.body;
    EXPECT_FALSE(at(a.body, "error.message").empty());
  };
  const auto raw = [&](const std::string& bytes) {
    Client client(server.port());
    client.send(bytes);
    return client.read();
  };
  check(post(server.port(), kPath, ask("", 1)), 401, "authentication_error");
  check(get(server.port(), kPath, key), 405, "invalid_request_error");
  check(post(server.port(), "/v1/messages/batches", "{}", key), 404, "not_found_error");
  check(post(server.port(), kPath, R"({"model":"none","max_tokens":1,"messages":[]})", key), 404, "not_found_error");
  check(raw("POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 2000000\r\n\r\n"), 413, "request_too_large");
  check(raw("POST /v1/messages HTTP/1.1\r\nhost: a\r\nx: " + std::string(40000, 'x')), 431, "request_too_large");
  check(raw("POST /v1/messages HTTP/1.1\r\n\r\n"), 400, "invalid_request_error");
  check(post(server.port(), kPath, "{}", key + "content-encoding: gzip\r\n"), 415, "invalid_request_error");
  Client first(server.port());
  first.send(post_text(kPath, ask("", 1), key));
  while (server.server().service().snapshot().live == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Answer refused = post(server.port(), kPath, ask("", 1), key);
  check(refused, 429, "rate_limit_error");
  EXPECT_GE(std::stoi(refused.header("retry-after")), 1);
  backend.paused = false;
  EXPECT_EQ(first.read().status, 200);
  // The same in the middle of OpenAI's paths keeps OpenAI's form.
  EXPECT_EQ(
      at(raw("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2000000\r\n\r\n").body, "error.type"),
      "invalid_request_error");
}

TEST(Messages, AFailureInTheMiddleOfAStreamIsAnErrorEventAndTheLast) {
  StubBackend backend;
  backend.step_time = std::chrono::milliseconds(5);
  RunningServer server(backend);
  Client client(server.port());
  client.send(post_text(kPath, ask(R"("stream":true)", 2000)));
  ASSERT_TRUE(client.read_until("content_block_delta"));
  backend.fail_next = true;
  EXPECT_TRUE(client.read_until("event: error"));
  EXPECT_TRUE(client.read_until("\"type\":\"api_error\""));
  EXPECT_TRUE(client.read_until("\r\n0\r\n"));
}

TEST(Messages, TheContextsEndHasItsOwnStopReason) {
  StubBackend backend(StubBackend::counting, 8, 256);
  RunningServer server(backend);
  const Answer a = post(server.port(), kPath, ask("", 100000));
  ASSERT_EQ(a.status, 200) << a.body;
  EXPECT_EQ(at(a.body, "stop_reason"), "model_context_window_exceeded");
  EXPECT_NE(a.header("x-fathom-warning").find("max_tokens"), std::string::npos);
}

}  // namespace
}  // namespace fathom::serve::test
