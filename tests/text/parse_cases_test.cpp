// The recorded cases of the official parser. They are not part of the repository; without them the test is skipped.
#include <map>

#include "support.h"
#include "text/output_parser.h"

namespace fathom::text::testing {
namespace {

constexpr std::string_view kEndToken = "<｜end▁of▁sentence｜>";
constexpr const char* kWhole = "(the whole text)";  // all of it is content

struct Result {
  const char* id;
  const char *reasoning, *content;
  const char* calls;   // name and arguments of each; * behind arguments that were no JSON
  const char* errors;  // separated by "; "
};

/// Where this parser means to give something else than the official one, which refuses most of these.
const Result kWiser[] = {
    // nested markup is misread by anybody: nothing is run; a bare closing word in a value is text
    {"value-dsml-nested-call", "", kWhole, "", "a block of tool calls with something else in it"},
    {"value-slash-dsml-parameter", "", "", "f{\"a\": \"path/｜DSML｜parameter x\"}", ""},
    // arguments must be JSON: what is not goes out as a string; a flag in other spelling is understood, a missing one
    // is not
    {"flag-false-invalid-json", "", "", "f{\"a\": \"not json\"}*", ""},
    {"flag-false-single-quotes", "", "", "f{\"a\": \"{'x': True}\"}*", ""},
    {"flag-false-trailing-comma", "", "", "f{\"a\": \"[1, 2, ]\"}*", ""},
    {"flag-false-injection", "", "", "f{\"a\": \"1, \\\"b\\\": 2\"}*", ""},
    {"flag-false-python-bool", "", "", "f{\"a\": \"True\", \"b\": \"None\"}*", ""},
    {"flag-upper", "", "", "f{\"a\": \"1\"}", ""},
    {"flag-missing", "", kWhole, "", "a parameter whose attributes cannot be read"},
    {"flag-single-quoted", "", "", "f{\"a\": \"x\"}", ""},
    {"flag-empty", "", kWhole, "", "a parameter whose attributes cannot be read"},
    // order and spaces do not matter; an attribute that nobody knows must not end up in a name
    {"attr-order-swapped", "", "", "f{\"a\": \"x\"}", ""},
    {"attr-unknown-after", "", kWhole, "", "a parameter whose attributes cannot be read"},
    {"attr-unknown-on-invoke", "", kWhole, "", "a tool call whose name cannot be read"},
    {"attr-double-space", "", "", "f{\"a\": \"x\"}", ""},
    {"attr-name-missing", "", kWhole, "", "a tag without a name"},
    // which value would count?
    {"dup-parameter-same", "", kWhole, "", "a parameter that is given twice"},
    // think tags inside text are text, a repeated one at the very beginning is dropped; markup in reasoning is no call
    {"think-empty-text", "", "", "", "the output ended inside the reasoning"},
    {"think-call-before-close",
     "let me call\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
     "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "", "", "the output ended inside the reasoning"},
    {"think-open-repeated", "r", "a", "", ""},
    {"think-two-closes", "r", "a</think>b", "", ""},
    {"think-reopened", "r", "a<think>b", "", ""},
    {"think-close-in-chat", "", "Hello", "", ""},
    {"think-full-block-in-chat", "r", "Hello", "", ""},
    {"think-mentions-dsml", "I could use <｜DSML｜tool_calls> here", "a", "", ""},
    {"think-mentions-dsml-own-paragraph", "Format:\n\n<｜DSML｜tool_calls>\nso", "a", "", ""},
    {"think-mentions-think-tag", "the <think> tag", "a", "", ""},
    {"think-case", "r</THINK>a", "", "", "the output ended inside the reasoning"},
    // the end token may be missing (the engine takes it away); what stands behind it is marked
    {"eos-missing", "", kWhole, "", ""},
    {"eos-missing-thinking", "r", "Hello", "", ""},
    {"eos-missing-empty", "", "", "", ""},
    {"eos-double", "", "Hello", "", "text behind the end token"},
    {"eos-then-text", "", "Hello", "", "text behind the end token"},
    {"eos-then-newline", "", "Hello", "", "text behind the end token"},
    {"eos-then-user-turn", "", "Hello", "", "text behind the end token"},
    {"eos-in-reasoning", "r", "", "", "the output ended inside the reasoning; text behind the end token"},
    {"eos-after-call-twice", "", "", "f{\"a\": 1}", "text behind the end token"},
    // kept as text
    {"bos-in-content", "", kWhole, "", ""},
    // other bars are text
    {"bars-mixed", "", kWhole, "", "a block of tool calls with something else in it"},
    {"bars-doubled", "", kWhole, "", ""},
    // other tag words are text
    {"older-block-name", "", kWhole, "", ""},
    // other tag words are text
    {"newer-tags-with-space", "", kWhole, "", ""},
    // the protocol is only spoken about: inside a line, or in a code fence
    {"mention-inline", "", kWhole, "", ""},
    {"mention-code-block", "", kWhole, "", ""},
    {"mention-code-block-own-paragraph", "", kWhole, "", ""},
    {"mention-token-alone", "", kWhole, "", ""},
    // other white space around tags is understood
    {"space-one-newline", "", "text", "f{\"a\": 1}", ""},
    {"space-no-newline", "", "", "f{\"a\": 1}", ""},
    {"space-indented", "", "", "f{\"a\": 1}", ""},
    {"space-compact", "", "", "f{\"a\": 1}", ""},
    {"space-blank-line-between-calls", "", "", "f{} g{}", ""},
    {"space-blank-line-between-parameters", "", "", "f{\"a\": 1, \"b\": 2}", ""},
    {"space-trailing-spaces", "", "", "f{\"a\": 1}", ""},
    // the block was closed, so its call stands; text inside a block breaks it
    {"text-after-block", "", " Done.", "f{\"a\": 1}", ""},
    {"text-between-calls", "", kWhole, "", "a block of tool calls with something else in it"},
    // both blocks were closed
    {"two-blocks", "", "", "f{} g{}", ""},
    // another tag
    {"block-attribute", "", kWhole, "", ""},
    {"block-name-longer", "", kWhole, "", ""},
    // a block that is not closed properly gives no call
    {"close-parameter-missing", "", "", "", "the output ended inside the value of a parameter"},
    {"close-invoke-missing", "", kWhole, "", "a tool call with something else than parameters in it"},
    {"close-block-missing", "", "", "", "the output ended inside a block of tool calls"},
    {"close-wrong-name", "", kWhole, "", "a tool call with something else than parameters in it"},
    // a block without calls is text
    {"json-in-block", "", kWhole, "", "a block of tool calls with something else in it"},
    // cut off: nothing is run
    {"cut-00", "", kWhole, "", ""},
    {"cut-01", "", kWhole, "", ""},
    {"cut-02", "", kWhole, "", ""},
    {"cut-04", "", "Look.", "", "the output ended inside a tag"},
    {"cut-05", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-06", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-09", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-10", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-11", "", "Look.", "", "the output ended inside a tag"},
    {"cut-13", "", "Look.", "", "the output ended inside a tag"},
    {"cut-14", "", "Look.", "", "the output ended inside the value of a parameter"},
    {"cut-16", "", "Look.", "", "the output ended inside the value of a parameter"},
    {"cut-17", "", "Look.", "", "the output ended inside the value of a parameter"},
    {"cut-19", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-20", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-21", "", "Look.", "", "the output ended inside the value of a parameter"},
    {"cut-22", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-23", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-24", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-27", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-28", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-eos-06", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-eos-15", "", "Look.", "", "the output ended inside the value of a parameter"},
    {"cut-eos-20", "", "Look.", "", "the output ended inside a tool call"},
    {"cut-eos-24", "", "Look.", "", "the output ended inside a block of tool calls"},
    {"cut-eos-25", "", "Look.", "", "the output ended inside a block of tool calls"},
};

std::string calls_of(const ParsedOutput& out) {
  std::string s;
  for (const ParsedOutput::Call& call : out.calls)
    s += (s.empty() ? "" : " ") + call.name + call.arguments + (call.note.empty() ? "" : "*");
  return s;
}

std::string joined(const std::vector<std::string>& list) {
  std::string s;
  for (const std::string& item : list) s += (s.empty() ? "" : "; ") + item;
  return s;
}

void check_wiser(const Result& expected, const ParsedOutput& out, std::string_view text) {
  if (text.ends_with(kEndToken)) text.remove_suffix(kEndToken.size());
  EXPECT_EQ(out.reasoning, expected.reasoning) << expected.id;
  EXPECT_EQ(out.content, expected.content == kWhole ? text : std::string_view(expected.content)) << expected.id;
  EXPECT_EQ(calls_of(out), expected.calls) << expected.id;
  EXPECT_EQ(joined(out.errors), expected.errors) << expected.id;
}

void check_same(const JsonValue& expected, const ParsedOutput& out, const std::string& id) {
  EXPECT_EQ(out.reasoning, expected.find("reasoning_content")->text) << id;
  EXPECT_EQ(out.content, expected.find("content")->text) << id;
  std::string calls;
  for (const JsonValue& call : expected.find("tool_calls")->items) {
    const JsonValue& function = *call.find("function");
    calls += (calls.empty() ? "" : " ") + function.find("name")->text + function.find("arguments")->text;
  }
  EXPECT_EQ(calls_of(out), calls) << id;
  EXPECT_TRUE(out.errors.empty()) << id;
}

TEST(ParseCases, ResultsAreThoseOfTheOfficialParserOrOfTheTable) {
  const auto path = kProtocolData / "encoding-cases/parse.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the recorded parser cases are not here";
  std::map<std::string, const Result*> wiser;
  for (const Result& r : kWiser) wiser[r.id] = &r;
  const std::vector<JsonValue> cases = read_lines(path);
  ASSERT_EQ(cases.size(), 130u);
  size_t same = 0, used = 0;
  for (const JsonValue& c : cases) {
    const std::string& id = c.find("id")->text;
    const JsonValue& input = *c.find("input");
    const ParserOptions options{.thinking = input.find("thinking_mode")->text == "thinking"};
    const ParsedOutput out = parse_output(input.find("text")->text, options);
    for (const ParsedOutput::Call& call : out.calls) EXPECT_TRUE(is_strict_json(call.arguments)) << id;
    if (const auto it = wiser.find(id); it != wiser.end()) {
      check_wiser(*it->second, out, input.find("text")->text);
      ++used;
    } else {
      ASSERT_TRUE(c.find("output")) << id << " is refused by the official parser and must be in the table";
      check_same(*c.find("output"), out, id);
      ++same;
    }
  }
  EXPECT_EQ(used, std::size(kWiser));
  EXPECT_EQ(same + used, 130u);
}

TEST(ParseCases, EveryOutputGivesTheSameWhereverItsBytesAreCut) {
  const auto path = kProtocolData / "encoding-cases/parse.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the recorded parser cases are not here";
  for (const JsonValue& c : read_lines(path)) {
    const JsonValue& input = *c.find("input");
    const std::string_view text = input.find("text")->text;
    const ParserOptions options{.thinking = input.find("thinking_mode")->text == "thinking"};
    const ParsedOutput whole = parse_output(text, options);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      OutputParser parser(options);
      ParsedOutput out;
      for (const auto& events : {parser.push(text.substr(0, cut)), parser.push(text.substr(cut)), parser.finish()})
        for (const OutputEvent& event : events) out.add(event);
      const bool same = out.reasoning == whole.reasoning && out.content == whole.content &&
                        calls_of(out) == calls_of(whole) && out.errors == whole.errors &&
                        out.leftover == whole.leftover;
      ASSERT_TRUE(same) << c.find("id")->text << " cut behind byte " << cut;
    }
  }
}

}  // namespace
}  // namespace fathom::text::testing
