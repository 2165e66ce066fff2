// The recorded cases of the official encoder. They are not part of the repository; without them the tests are skipped.
#include <map>

#include "support.h"
#include "text/chat.h"
#include "text/chat_json.h"

namespace fathom::text::testing {
namespace {

constexpr const char* kRefused = "refused";

/// Cases where a server must do something else than the official encoder, with the prompt that it shall give.
const std::map<std::string, std::string> kWiser = {
    // Python's text form of a wrong type would reach the prompt: converted where the meaning is plain...
    {"content-tool-null",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
     "name=\"f\">\n\n"
     "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result></"
     "tool_result><｜Assistant｜></think>"},
    {"content-system-parts", "<｜begin▁of▁sentence｜>rule<｜User｜>x<｜Assistant｜></think>"},
    {"content-assistant-parts",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think>hi<｜end▁of▁sentence｜><｜User｜>y<｜Assistant｜></"
     "think>"},
    {"content-reasoning-parts",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜><think>r</think>y<｜end▁of▁sentence｜>"},
    // ...and refused where it is not.
    {"content-tool-true", kRefused},
    {"content-tool-object", kRefused},
    {"content-system-number", kRefused},
    {"calls-name-null", kRefused},
    // The encoder crashes on text parts in a user message; a server flattens them.
    {"content-user-parts", "<｜begin▁of▁sentence｜><｜User｜>hello<｜Assistant｜></think>"},
    // The encoder loses new messages when a developer message in the context is dropped.
    {"context-developer-quirk", "<｜User｜>q2<｜Assistant｜><think>"},
    {"context-developer-quirk-partial",
     "x<｜end▁of▁sentence｜><｜User｜>q2<｜Assistant｜><think>r</think>y<｜end▁of▁sentence｜>"},
};

std::string encode_case(const JsonValue& input, Revision revision, std::vector<Segment>* segments = nullptr) {
  JsonValue messages = *input.find("messages");
  if (const JsonValue* tools = input.find("tools")) messages.items.at(0).members.emplace_back("tools", *tools);
  const MessageReading as_recorded{.argument_objects_as_text = false};
  ChatOptions options;
  options.revision = revision;
  for (const auto& [key, value] : input.find("options")->members) {
    if (key == "thinking_mode") {
      options.thinking_mode = value.text;
    } else if (key == "drop_thinking") {
      options.drop_thinking = value.truth;
    } else if (key == "add_default_bos_token") {
      options.begin_token = value.truth;
    } else if (key == "reasoning_effort") {
      if (value.is(JsonValue::Kind::string)) options.reasoning_effort = value.text;
    } else if (key == "context") {
      options.context = messages_from_json(write_json(value), "context", as_recorded);
    } else {
      throw std::runtime_error("the case has an option that this test does not know: " + key);
    }
  }
  const std::vector<Segment> prompt =
      encode_chat(messages_from_json(write_json(messages), "messages", as_recorded), options);
  if (segments) *segments = prompt;
  return prompt_text(prompt);
}

std::string outcome(const JsonValue& input, Revision revision) {
  try {
    return encode_case(input, revision);
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return kRefused;
  }
}

std::vector<JsonValue> encode_cases() {
  const auto path = kProtocolData / "encoding-cases/encode.jsonl";
  return std::filesystem::exists(path) ? read_lines(path) : std::vector<JsonValue>{};
}

TEST(ChatCases, PromptsAreThoseOfTheOfficialEncoderInBothRevisions) {
  const std::vector<JsonValue> cases = encode_cases();
  if (cases.empty()) GTEST_SKIP() << "the recorded encoder cases are not here";
  ASSERT_EQ(cases.size(), 245u);
  size_t wiser = 0, compared = 0;
  for (const JsonValue& c : cases) {
    const std::string& id = c.find("id")->text;
    std::string expected = c.find("output") ? c.find("output")->text : kRefused;
    if (const auto it = kWiser.find(id); it != kWiser.end()) {
      EXPECT_NE(it->second, expected) << id << " need not be in the table";
      expected = it->second, ++wiser;
    } else {
      EXPECT_FALSE(c.find("type_leak")) << id;
    }
    const std::string revision = c.find("revision") ? c.find("revision")->text : "both";
    for (const auto& [name, value] : {std::pair{"preview", Revision::preview}, std::pair{"0731", Revision::r0731}})
      if (revision == "both" || revision == name) {
        EXPECT_EQ(outcome(*c.find("input"), value), expected) << id << " " << name;
        ++compared;
      }
  }
  EXPECT_EQ(wiser, kWiser.size());
  EXPECT_GT(compared, 245u);
}

TEST(ChatCases, PromptsAreThoseOfTheFourOfficialTests) {
  if (!std::filesystem::exists(kProtocolData / "encoding-tests")) GTEST_SKIP() << "the official tests are not here";
  for (int i = 1; i <= 4; ++i) {
    JsonValue input;
    input.kind = JsonValue::Kind::object;
    JsonValue document = parse(read_file(kProtocolData / fmt::format("encoding-tests/test_input_{}.json", i)));
    if (document.is(JsonValue::Kind::array)) {
      input.members.emplace_back("messages", std::move(document));
    } else {
      input = std::move(document);
    }
    input.members.emplace_back("options",
                               parse(i == 4 ? R"({"thinking_mode": "chat"})" : R"({"thinking_mode": "thinking"})"));
    const std::string expected = read_file(kProtocolData / fmt::format("encoding-tests/test_output_{}.txt", i));
    EXPECT_EQ(outcome(input, Revision::preview), expected) << i;
    EXPECT_EQ(outcome(input, Revision::r0731), expected) << i;
  }
}

TEST(ChatCases, IdsOfThePromptAreThoseOfItsTextUnlessAClientSpellsOutTokens) {
  const std::vector<JsonValue> cases = encode_cases();
  if (cases.empty()) GTEST_SKIP() << "the recorded encoder cases are not here";
  const Tokenizer& tokenizer = fairy_tokenizer();
  size_t same = 0, different = 0;
  for (const JsonValue& c : cases) {
    std::vector<Segment> segments;
    try {
      encode_case(*c.find("input"), Revision::r0731, &segments);
    } catch (const Error&) {
      continue;
    }
    // Text that spells out a token is told apart from the token: this is the only difference.
    bool spelled = false;
    for (const Segment& s : segments)
      if (!s.control &&
          tokenizer.encode(s.text, AddedTokens::recognise) != tokenizer.encode(s.text, AddedTokens::as_text))
        spelled = true;
    const bool equal =
        prompt_ids(segments, tokenizer) == tokenizer.encode(prompt_text(segments), AddedTokens::recognise);
    EXPECT_EQ(equal, !spelled) << c.find("id")->text;
    ++(equal ? same : different);
  }
  EXPECT_GT(same, 180u);
  EXPECT_GT(different, 0u);
}

}  // namespace
}  // namespace fathom::text::testing
