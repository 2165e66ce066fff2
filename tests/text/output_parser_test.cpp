#include "text/output_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/utf8.h"
#include "support.h"

namespace fathom::text::testing {
namespace {

const std::string kEnd = "<｜end▁of▁sentence｜>";

/// Markup in short: "D" behind '<' or '/' stands for the DSML token, "<E>" for the end token.
std::string markup(std::string s) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (size_t at = s.find(from); at != s.npos; at = s.find(from, at + to.size())) s.replace(at, from.size(), to);
  };
  replace("<D", "<｜DSML｜");
  replace("/D", "/｜DSML｜");
  replace("<E>", kEnd);
  return s;
}

std::string call(const std::string& name, const std::string& parameters) {
  return "<Dinvoke name=\"" + name + "\">\n" + parameters + "</Dinvoke>\n";
}

std::string block(const std::string& calls) {
  return "\n\n<Dtool_calls>\n" + calls + "</Dtool_calls>";
}

const std::string kParameter = "<Dparameter name=\"a\" string=\"true\">x</Dparameter>\n";

/// Events with neighbouring deltas joined.
class Joined {
 public:
  void add(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& e : events) {
      const bool delta =
          e.kind == OutputKind::reasoning || e.kind == OutputKind::content || e.kind == OutputKind::call_arguments;
      if (delta && !all.empty() && all.back().kind == e.kind && all.back().call == e.call) {
        all.back().text += e.text;
      } else {
        all.push_back(e);
      }
      valid = valid && is_valid_utf8(e.text);
    }
  }
  std::vector<OutputEvent> all;
  bool valid = true;  // every event is whole UTF-8
};

Joined run(std::string_view text, const ParserOptions& options, const std::vector<size_t>& cuts) {
  Joined joined;
  OutputParser parser(options);
  size_t at = 0;
  for (size_t i = 0; at < text.size(); ++i) {
    const size_t n = cuts.empty() ? text.size() : std::min(cuts[i % cuts.size()], text.size() - at);
    joined.add(parser.push(text.substr(at, n)));
    at += n;
  }
  joined.add(parser.finish());
  return joined;
}

std::string show(const std::vector<OutputEvent>& events) {
  constexpr const char* kNames[] = {"reasoning", "content", "begin", "arguments", "end", "done", "malformed", "cut"};
  std::string out;
  for (const OutputEvent& e : events)
    out += fmt::format("{}({}{}{}) ", kNames[static_cast<int>(e.kind)], e.call >= 0 ? fmt::format("{}: ", e.call) : "",
                       printable(e.text, 1000), e.raw.empty() ? "" : " raw " + printable(e.raw, 1000));
  return out;
}

/// What every output must satisfy, whatever the model wrote.
void check_promises(const Joined& joined) {
  EXPECT_TRUE(joined.valid);
  std::vector<std::string> arguments;
  int open = -1;
  for (const OutputEvent& e : joined.all) {
    if (e.kind == OutputKind::call_begin) {
      ASSERT_EQ(open, -1) << show(joined.all);
      ASSERT_EQ(e.call, static_cast<int>(arguments.size())) << show(joined.all);
      ASSERT_FALSE(e.text.empty());
      arguments.emplace_back();
      open = e.call;
    } else if (e.kind == OutputKind::call_arguments) {
      ASSERT_EQ(e.call, open) << show(joined.all);
      arguments.back() += e.text;
    } else if (e.kind == OutputKind::call_end) {
      ASSERT_EQ(e.call, open) << show(joined.all);
      ASSERT_TRUE(is_strict_json(arguments.back())) << arguments.back();
      open = -1;
    } else if (e.kind == OutputKind::malformed || e.kind == OutputKind::cut) {
      if (open >= 0) {
        EXPECT_FALSE(is_strict_json(arguments.back())) << arguments.back();
      }
      open = -1;
    } else {
      ASSERT_EQ(open, -1) << show(joined.all);
    }
  }
  EXPECT_EQ(open, -1) << show(joined.all);
}

TEST(OutputParser, StreamsReasoningContentAndCalls) {
  const std::string text =
      markup("think</think>Hi." +
             block(call("f", kParameter + "<Dparameter name=\"n\" string=\"false\">[1]</Dparameter>\n")) + "<E>");
  EXPECT_EQ(show(run(text, {.thinking = true}, {}).all),
            "reasoning(think) content(Hi.) begin(0: f) arguments(0: {\"a\": \"x\", \"n\": [1]}) end(0: ) done() ");
}

TEST(OutputParser, GivesOutTextAsSoonAsItCannotBeMarkup) {
  OutputParser parser({});
  EXPECT_EQ(show(parser.push("Hello ")), "content(Hello) ");
  EXPECT_EQ(show(parser.push("wor")), "content( wor) ");
  EXPECT_EQ(show(parser.push("ld <")), "content(ld) ");
  EXPECT_EQ(show(parser.push("b>")), "content( <b>) ");
  EXPECT_EQ(show(parser.push("\n\n\n\n")), "content(\\x0a\\x0a) ");
  EXPECT_EQ(show(parser.push("x\xE2\x82")), "content(\\x0a\\x0ax) ");
  EXPECT_EQ(show(parser.push("\xAC")), "content(€) ");
  EXPECT_EQ(show(parser.finish()), "");
}

TEST(OutputParser, StreamsStringArgumentsBeforeTheyEnd) {
  OutputParser parser({});
  parser.push(markup("\n\n<Dtool_calls>\n<Dinvoke name=\"f\">\n<Dparameter name=\"a\" string=\"true\">"));
  EXPECT_EQ(show(parser.push("one \"two")), "arguments(0: one \\\"two) ");
  EXPECT_EQ(show(parser.push("<")), "");
  EXPECT_EQ(show(parser.push("/b")), "arguments(0: </b) ");
}

TEST(OutputParser, WholeDeliverySaysNothingOfACallThatDoesNotCount) {
  const std::string good = markup("Hi" + block(call("f", kParameter) + call("g", "")) + "<E>");
  const ParserOptions whole{.delivery = CallDelivery::whole};
  EXPECT_EQ(show(run(good, whole, {1}).all), show(run(good, {}, {}).all));
  for (size_t n = 0; n < good.size() - kEnd.size(); ++n)
    for (const OutputEvent& e : run(std::string_view(good).substr(0, n), whole, {}).all)
      EXPECT_TRUE(e.kind == OutputKind::content || e.kind == OutputKind::cut) << n;
}

TEST(OutputParser, ACallThatIsCutAnywhereNeverCounts) {
  const std::string text = markup("Hi" + block(call("f", kParameter) + call("g", "")));
  for (size_t n = 0; n <= text.size(); ++n)
    for (const char* tail : {"", "<E>"}) {
      const ParsedOutput out = parse_output(text.substr(0, n) + markup(tail), {});
      EXPECT_EQ(out.calls.size(), n == text.size() ? 2u : 0u) << n;
      EXPECT_TRUE(out.content.starts_with(text.substr(0, std::min<size_t>(n, 2)))) << n;
    }
}

TEST(OutputParser, TextOfABrokenBlockIsContentAndNothingAfterItIsACall) {
  const std::string bad = block("<Dinvoke name=\"f\">\n" + kParameter + kParameter + "</Dinvoke>\n");
  const std::string text = markup("Hi" + bad + block(call("g", "")) + "<E>");
  const ParsedOutput out = parse_output(text, {});
  EXPECT_TRUE(out.calls.empty());
  EXPECT_EQ(out.content, text.substr(0, text.size() - kEnd.size()));
  EXPECT_EQ(out.errors.size(), 1u);
}

TEST(OutputParser, AMentionOfTheBlockDoesNotHideTheCallBehindIt) {
  const ParsedOutput out =
      parse_output(markup("A block begins with\n\n<Dtool_calls>\nand so on." + block(call("g", "")) + "<E>"), {});
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.content, markup("A block begins with\n\n<Dtool_calls>\nand so on."));
}

TEST(OutputParser, ABlockInAnOpenCodeFenceIsACallOnlyAtTheVeryEnd) {
  const std::string fence = "```xml" + block(call("f", ""));
  EXPECT_EQ(parse_output(markup(fence + "<E>"), {}).calls.size(), 1u);
  for (const char* tail : {"\n```\nDone.<E>", "\n```", " x"}) {
    const ParsedOutput out = parse_output(markup(fence + tail), {});
    EXPECT_TRUE(out.calls.empty()) << tail;
    EXPECT_TRUE(out.errors.empty()) << tail;
    EXPECT_TRUE(out.content.starts_with(markup(fence))) << tail;
  }
  EXPECT_EQ(parse_output(markup("```sh\nls\n```" + block(call("f", "")) + "\nDone."), {}).calls.size(), 1u);
  EXPECT_EQ(parse_output(markup("Use ``` to quote." + block(call("f", "")) + "\nDone."), {}).calls.size(), 1u);
}

TEST(OutputParser, AValueThatHoldsAWholeBlockGivesNoCall) {
  const std::string inner = block(call("g", kParameter));
  const std::string outer = block(call("f", "<Dparameter name=\"a\" string=\"true\">" + inner + "</Dparameter>\n"));
  const ParsedOutput out = parse_output(markup(outer + "<E>"), {});
  EXPECT_TRUE(out.calls.empty());
  EXPECT_EQ(out.content, markup(outer));
}

TEST(OutputParser, ArgumentsThatAreNotJsonBecomeStringsWithANote) {
  for (const char* value : {"not json", "NaN", "1, \"b\": 2", "[1,]", "", "\"\\ud800\"", "{\"a\": 1", "\"x"}) {
    const ParsedOutput out = parse_output(
        markup(block(call("f", std::string("<Dparameter name=\"a\" string=\"false\">") + value + "</Dparameter>\n"))),
        {});
    ASSERT_EQ(out.calls.size(), 1u) << value;
    EXPECT_EQ(out.calls[0].arguments, "{\"a\": " + json_quoted(value) + "}");
    EXPECT_FALSE(out.calls[0].note.empty());
  }
}

TEST(OutputParser, LongOutputsTakeLinearTime) {
  std::string text = "\n\n<Dtool_calls>\n";
  for (int i = 0; i < 5'000; ++i) text += call("f", "<Dparameter name=\"a\" string=\"true\">x < y </Dparameter>\n");
  text = markup(std::string(50'000, ' ') + std::string(50'000, '\n') + text + "</Dtool_calls>" +
                std::string(50'000, '\n'));
  EXPECT_EQ(parse_output(text, {}).calls.size(), 5'000u);
  OutputParser parser({});
  ParsedOutput out;
  for (const char c : text)
    for (const OutputEvent& e : parser.push({&c, 1})) out.add(e);
  for (const OutputEvent& e : parser.finish()) out.add(e);
  EXPECT_EQ(out.calls.size(), 5'000u);
}

/// Texts that look like what a model writes, with faults.
rc::Gen<std::string> outputs() {
  const std::vector<std::string> pieces = {"text",
                                           " ",
                                           "\n",
                                           "\n\n",
                                           "\r\n",
                                           "<",
                                           ">",
                                           "</",
                                           "D",
                                           "`",
                                           "```",
                                           "```\n",
                                           "~~~\n",
                                           "é",
                                           "\xE2\x82",
                                           "\xAC",
                                           "\xFF",
                                           "\"",
                                           "'",
                                           "<think>",
                                           "</think>",
                                           "<E>",
                                           "<Dtool_calls>",
                                           "</Dtool_calls>",
                                           "<Dtool_calls",
                                           "<Dinvoke name=\"f\">",
                                           "<Dinvoke name=\"g\" >",
                                           "</Dinvoke>",
                                           "<Dparameter name=\"a\" string=\"true\">",
                                           "<Dparameter name=\"b\" string=\"false\">",
                                           "</Dparameter>",
                                           "<\n/Dparameter >",
                                           "<Dparameter string='true' name='c'>",
                                           "<Dparameter name=\"d\">",
                                           "1",
                                           "[1, 2]",
                                           "{\"k\": 1}",
                                           "<D",
                                           "/D",
                                           "<Dinvoke",
                                           "name=\"f\">",
                                           "\n\n<Dtool_calls>\n",
                                           call("f", kParameter),
                                           call("h", ""),
                                           block(call("f", kParameter)),
                                           block(call("f", kParameter) + call("g", "")),
                                           "<Dparameter name=\"b\" string=\"false\">[1]</Dparameter>\n",
                                           "<Dparameter name=\"b\" string=\"false\">no</Dparameter>\n"};
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(pieces)),
                      [](const std::vector<std::string>& list) {
                        std::string all;
                        for (const std::string& piece : list) all += piece;
                        return markup(all);
                      });
}

RC_GTEST_PROP(OutputParserProperty, EventsDoNotDependOnHowTheTextIsCut, ()) {
  const std::string text = *outputs();
  const auto cuts = *rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 12)));
  const bool thinking = *rc::gen::arbitrary<bool>(), whole = *rc::gen::arbitrary<bool>();
  const ParserOptions options{.thinking = thinking, .delivery = whole ? CallDelivery::whole : CallDelivery::streamed};
  const Joined once = run(text, options, {}), pieces = run(text, options, cuts), bytes = run(text, options, {1});
  RC_ASSERT(show(once.all) == show(pieces.all));
  RC_ASSERT(show(once.all) == show(bytes.all));
  check_promises(bytes);
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(OutputParserProperty, CallsAreTheSameStreamedOrWhole, ()) {
  const std::string text = *outputs();
  const ParsedOutput streamed = parse_output(text, {}), whole = parse_output(text, {.delivery = CallDelivery::whole});
  RC_ASSERT(streamed.content == whole.content);
  RC_ASSERT(streamed.calls.size() == whole.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) RC_ASSERT(streamed.calls[i].arguments == whole.calls[i].arguments);
}

RC_GTEST_PROP(OutputParserProperty, TextWithoutMarkupComesOutUnchanged, (const std::string& raw)) {
  if (raw.find('<') != raw.npos) return;
  RC_ASSERT(parse_output(raw, {}).content == utf8_repaired(raw));
  RC_ASSERT(parse_output(raw, {.thinking = true}).reasoning == utf8_repaired(raw));
}

}  // namespace
}  // namespace fathom::text::testing
