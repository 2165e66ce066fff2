// Constrained output: what the grammars allow is what they should, byte by byte and token by token.
#include "text/constrain/constraint.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>

#include "base/error.h"
#include "base/utf8.h"
#include "text/constrain/json_grammar.h"
#include "text/constrain/tool_grammar.h"
#include "text/output_parser.h"

namespace fathom::text {
namespace {

JsonValue json(std::string_view text) {
  JsonReading r = read_json(text);
  if (!r.value) throw std::runtime_error(r.error);
  return std::move(*r.value);
}

bool matches(GrammarAutomaton& a, std::string_view text) {
  auto state = a.start();
  for (const char c : text) state = a.next(state, static_cast<uint8_t>(c));
  return a.accepts(state);
}

bool schema_allows(const char* schema, std::string_view text) {
  const JsonValue document = json(schema);
  GrammarAutomaton a(json_schema_grammar(document));
  return matches(a, text);
}

std::string schema_error(const char* schema) {
  try {
    const JsonValue document = json(schema);
    json_schema_grammar(document);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// A text of the grammar, found by walking at random; short ways out are taken after a while.
std::string random_text(GrammarAutomaton& a, uint32_t seed, size_t wander) {
  std::mt19937 random(seed);
  std::string text;
  auto state = a.start();
  while (!(a.accepts(state) && (text.size() >= wander || a.must_end(state)))) {
    std::vector<uint8_t> bytes;
    for (int b = 0; b < 256; ++b)
      if (a.next(state, static_cast<uint8_t>(b)) != GrammarAutomaton::dead) bytes.push_back(static_cast<uint8_t>(b));
    if (bytes.empty()) throw std::logic_error("a dead end behind " + text);
    uint8_t next = bytes[random() % bytes.size()];
    if (text.size() >= wander)  // close what is open
      for (const char c : {'"', '}', ']', '0', 'n', 'u', 'l'})
        if (a.next(state, static_cast<uint8_t>(c)) != GrammarAutomaton::dead) {
          next = static_cast<uint8_t>(c);
          break;
        }
    text += static_cast<char>(next);
    state = a.next(state, next);
    if (text.size() > 200'000) throw std::logic_error("no end");
  }
  return text;
}

TEST(JsonObjectGrammar, TakesObjectsAndNothingElse) {
  GrammarAutomaton a(json_object_grammar());
  for (const char* good : {"{}", "{ }", R"({"a": 1})", R"({"a":[1, 2.5e-3, -0],"b":{"c":null},"d":"\u00e9\n\"é𝄞"})",
                           "{\n  \"a\": true,\n  \"b\": []\n}", R"({"x": "\ud83d\ude00"})"})
    EXPECT_TRUE(matches(a, good)) << good;
  for (const char* bad : {"",
                          "[]",
                          "1",
                          "{",
                          "{}x",
                          R"({"a"})",
                          R"({"a":})",
                          R"({"a":1,})",
                          R"({a:1})",
                          R"({"a":01})",
                          R"({"a":.5})",
                          R"({"a":1.})",
                          R"({"a":+1})",
                          R"({"a":tru})",
                          R"({"a":"\x"})",
                          R"({"a":"\ud800"})",
                          "{\"a\":\"\n\"}",
                          "{\"a\":\"\xff\"}",
                          "{\"a\":\"\xc0\xaf\"}",
                          R"({"a":NaN})",
                          R"({'a':1})"})
    EXPECT_FALSE(matches(a, bad)) << bad;
}

RC_GTEST_PROP(JsonObjectGrammar, GivesTextsThatAreJson, ()) {
  GrammarAutomaton a(json_object_grammar());
  const std::string text = random_text(a, *rc::gen::arbitrary<uint32_t>(), *rc::gen::inRange<size_t>(0, 300));
  RC_ASSERT(is_valid_utf8(text));
  const JsonReading r = read_json(text);
  RC_ASSERT(r.value.has_value());
  RC_ASSERT(r.value->is(JsonValue::Kind::object));
  RC_ASSERT(!r.lone_surrogate);
}

TEST(JsonObjectGrammar, LongTextsNeedFewStates) {
  GrammarAutomaton a(json_object_grammar());
  ASSERT_TRUE(matches(a, "{\"a\": \"" + std::string(100'000, 'x') + "\"}"));
  std::string list = "{\"a\": [0";
  for (int i = 0; i < 10'000; ++i) list += ", 1";
  ASSERT_TRUE(matches(a, list + "]}"));
  EXPECT_LT(a.state_count(), 400u);
  EXPECT_FALSE(matches(a, "{\"a\":" + std::string(5000, '['))) << "nesting has a limit";
}

TEST(JsonSchemaGrammar, ObjectsHaveTheirPropertiesInOrder) {
  const char* schema =
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array",
      "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2}}, "required": ["name"], "additionalProperties": false})";
  for (const char* good : {R"({"name": "x"})", R"({"name":"x","age":-3})", R"({"name": "x", "tags": ["a"]})",
                           R"({ "name": "x", "age": 1, "tags": ["a", "b"] })"})
    EXPECT_TRUE(schema_allows(schema, good)) << good;
  for (const char* bad :
       {"{}", R"({"age": 1})", R"({"age": 1, "name": "x"})", R"({"name": 1})", R"({"name": "x", "age": 1.5})",
        R"({"name": "x", "tags": []})", R"({"name": "x", "tags": ["c"]})", R"({"name": "x", "tags": ["a", "a", "a"]})",
        R"({"name": "x", "other": 1})", R"({"name": "x",})"})
    EXPECT_FALSE(schema_allows(schema, bad)) << bad;
}

TEST(JsonSchemaGrammar, OptionalPropertiesAllowEverySubset) {
  const char* schema = R"({"properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}})";
  for (const char* good : {"{}", R"({"a":null})", R"({"b":null})", R"({"c":null})", R"({"a":null,"c":null})",
                           R"({"a":null,"b":null,"c":null})"})
    EXPECT_TRUE(schema_allows(schema, good)) << good;
  for (const char* bad : {R"({,"b":null})", R"({"a":null "b":null})", R"({"a":null,"a":null})", R"({"d":null})"})
    EXPECT_FALSE(schema_allows(schema, bad)) << bad;
}

TEST(JsonSchemaGrammar, AdditionalPropertiesFollowTheirSchema) {
  const char* schema =
      R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})";
  EXPECT_TRUE(schema_allows(schema, R"({"a": 1, "x": true, "y": false})"));
  EXPECT_TRUE(schema_allows(schema, R"({"x": true})"));
  EXPECT_FALSE(schema_allows(schema, R"({"x": 1})"));
  EXPECT_TRUE(schema_allows(R"({"type": "object"})", R"({"anything": [1]})"));
}

TEST(JsonSchemaGrammar, KnowsTheOtherKeywords) {
  EXPECT_TRUE(schema_allows(R"({"const": {"a": [1, "x"]}})", R"({"a": [1, "x"]})"));
  EXPECT_TRUE(schema_allows(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "null"));
  EXPECT_TRUE(schema_allows(R"({"type": ["string", "number"]})", "1e5"));
  EXPECT_FALSE(schema_allows(R"({"type": ["string", "number"]})", "true"));
  EXPECT_TRUE(schema_allows(R"({"type": "string", "nullable": true})", "null"));
  EXPECT_TRUE(schema_allows(R"({"type": "string", "minLength": 2, "maxLength": 3})", "\"é\\n\""));
  EXPECT_FALSE(schema_allows(R"({"type": "string", "minLength": 2, "maxLength": 3})", "\"a\""));
  EXPECT_FALSE(schema_allows(R"({"type": "string", "maxLength": 3})", "\"abcd\""));
  EXPECT_TRUE(schema_allows(R"({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "boolean"}}})", "true"));
  EXPECT_TRUE(schema_allows("true", "[1, {}]"));
  EXPECT_TRUE(schema_allows(R"({"title": "t", "format": "date", "type": "string"})", "\"2026-01-01\""));
}

TEST(JsonSchemaGrammar, SchemasMayReferToThemselves) {
  const char* tree =
      R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
      "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["v", "kids"]}}})";
  EXPECT_TRUE(
      schema_allows(tree, R"({"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]})"));
  EXPECT_FALSE(schema_allows(tree, R"({"v": 1, "kids": [{"v": 2}]})"));
}

TEST(JsonSchemaGrammar, WhatItCannotEnforceIsAnErrorThatNamesThePlace) {
  EXPECT_NE(schema_error(R"({"properties": {"a": {"type": "integer", "minimum": 1}}})")
                .find("#/properties/a: minimum is not supported"),
            std::string::npos);
  for (const char* bad : {R"({"type": "text"})",
                          R"({"type": 1})",
                          R"({"enum": []})",
                          R"({"enum": 1})",
                          R"({"anyOf": []})",
                          R"({"$ref": "#/nothing"})",
                          R"({"$ref": "#"})",
                          R"({"$ref": 1})",
                          R"({"required": ["a"]})",
                          R"({"properties": []})",
                          R"({"items": 1})",
                          R"({"minItems": -1})",
                          R"({"minItems": 1.5})",
                          R"({"minItems": 3, "maxItems": 2})",
                          R"({"maxItems": 99999999999999999999})",
                          R"({"minLength": 70000})",
                          "false",
                          "1",
                          R"({"not": {}})",
                          R"({"pattern": "a"})",
                          R"({"allOf": [{}, {}]})"})
    EXPECT_NE(schema_error(bad), "") << bad;
  std::string deep = "{}";
  for (int i = 0; i < 300; ++i) deep = R"({"items": )" + deep + "}";
  EXPECT_NE(schema_error(deep.c_str()), "");
}

const Tokenizer& fairy() {
  static const Tokenizer t = Tokenizer::load(FATHOM_SOURCE_DIR "/models/fairy/tokenizer.json");
  return t;
}
std::shared_ptr<const TokenTable> fairy_tokens() {
  static const auto table = std::make_shared<const TokenTable>(fairy());
  return table;
}
bool has(const TokenSet& set, int32_t id) {
  return set[static_cast<size_t>(id) / 64] >> (id % 64) & 1;
}

RC_GTEST_PROP(Constraint, AllowsExactlyTheTokensWhoseBytesMayCome, ()) {
  const JsonValue schema = json(
      R"({"type": "object", "properties": {"the": {"type": "string"}, "n": {"type": "array", "items": {"type": "number"}}}})");
  const Grammar grammar = json_schema_grammar(schema);
  ConstraintMatcher matcher(std::make_shared<Constraint>(grammar, fairy_tokens(), std::vector<int32_t>{1}));
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  for (int step = 0; step < 12; ++step) {
    const TokenSet* allowed = matcher.allowed();
    RC_ASSERT(allowed != nullptr);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < fairy().vocab_size(); ++id) {
      ConstraintMatcher copy = matcher;
      RC_ASSERT(has(*allowed, id) == copy.accept(id));
      if (has(*allowed, id)) ids.push_back(id);
    }
    RC_ASSERT(!ids.empty());
    const int32_t next = ids[random() % ids.size()];
    RC_ASSERT(matcher.accept(next));
    if (next == 1) return;
  }
}

TEST(Constraint, EndsOnlyWhereTheTextIsComplete) {
  ConstraintMatcher m(std::make_shared<Constraint>(json_object_grammar(), fairy_tokens(), std::vector<int32_t>{1}));
  EXPECT_FALSE(m.complete());
  EXPECT_FALSE(has(*m.allowed(), 1));
  for (const int32_t id : fairy().encode("{}", AddedTokens::as_text)) ASSERT_TRUE(m.accept(id));
  EXPECT_TRUE(m.complete());
  EXPECT_TRUE(m.must_end());
  EXPECT_TRUE(has(*m.allowed(), 1));
  EXPECT_TRUE(m.accept(1));
  EXPECT_FALSE(m.accept(1)) << "nothing follows the end";
}

TEST(Constraint, BeginsBehindTheThinking) {
  const int32_t close = fairy().added_id("</think>").value();
  ConstraintMatcher m(
      std::make_shared<Constraint>(json_object_grammar(), fairy_tokens(), std::vector<int32_t>{1}, close));
  EXPECT_EQ(m.allowed(), nullptr);
  for (const int32_t id : fairy().encode("let me see", AddedTokens::as_text)) EXPECT_TRUE(m.accept(id));
  EXPECT_EQ(m.allowed(), nullptr);
  EXPECT_TRUE(m.accept(close));
  ASSERT_NE(m.allowed(), nullptr);
  EXPECT_FALSE(m.accept(close));
  EXPECT_FALSE(m.accept(fairy().encode("x", AddedTokens::as_text)[0]));
  EXPECT_FALSE(m.accept(-1));
  EXPECT_FALSE(m.accept(1 << 30));
}

TEST(TextWithout, IsEveryTextThatLacksThePattern) {
  Grammar g;
  g.set_start(text_without(g, "abab"));
  GrammarAutomaton a(g);
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n)
      text += random() % 5 == 0 ? "é" : std::string(1, static_cast<char>('a' + random() % 2));
    EXPECT_EQ(matches(a, text), text.find("abab") == text.npos) << text;
  }
  EXPECT_FALSE(matches(a, "\xff"));
  EXPECT_FALSE(matches(a, "a\xc3"));
}

TEST(ToolCallGrammar, TakesCallsAsTheEncodingWritesThem) {
  const JsonValue weather = json(
      R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]})");
  const std::vector<ToolFunction> tools = {{"weather", &weather}, {"now", nullptr}};
  GrammarAutomaton a(tool_call_grammar(tools, true));
  const std::string open = "\n\n<｜DSML｜tool_calls>\n", close = "\n</｜DSML｜tool_calls>";
  const std::string paris =
      "<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris "
      "<b>/</｜DSML｜parameter>\n</｜DSML｜invoke>";
  const std::string days =
      "<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\"></｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>";
  const std::string now = "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>";
  for (const std::string& good :
       {open + paris + close, open + now + close, open + paris + "\n" + now + "\n" + days + close})
    EXPECT_TRUE(matches(a, good)) << good;
  for (const std::string& bad :
       {std::string(), std::string("hello"), open + close, open + now, open + now + now + close,
        open + "<｜DSML｜invoke name=\"weather\">\n\n</｜DSML｜invoke>" + close,
        open + "<｜DSML｜invoke name=\"other\">\n\n</｜DSML｜invoke>" + close})
    EXPECT_FALSE(matches(a, bad)) << bad;
  GrammarAutomaton single(tool_call_grammar(tools, false));
  EXPECT_TRUE(matches(single, open + now + close));
  EXPECT_FALSE(matches(single, open + now + "\n" + now + close));
  EXPECT_THROW(tool_call_grammar({}, true), Error);
}

RC_GTEST_PROP(ToolCallGrammar, GivesCallsThatTheOutputParserReads, ()) {
  static const JsonValue parameters = json(
      R"({"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}, "deep": {"type": "object"},
      "kind": {"type": "string", "enum": ["a", "b"]}}, "required": ["kind"]})");
  const std::vector<ToolFunction> tools = {{"f", &parameters}, {"g", nullptr}};
  GrammarAutomaton a(tool_call_grammar(tools, true));
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  // Walk at random, but leave free text soon: by the way that closes the value.
  std::string text;
  auto state = a.start();
  while (!(a.accepts(state) && (a.must_end(state) || random() % 2))) {
    std::vector<uint8_t> bytes;
    for (int b = 0; b < 256; ++b)
      if (a.next(state, static_cast<uint8_t>(b)) != GrammarAutomaton::dead) bytes.push_back(static_cast<uint8_t>(b));
    RC_ASSERT(!bytes.empty());
    uint8_t next = bytes[random() % bytes.size()];
    const std::string end = "</｜DSML｜parameter>\n";
    if (bytes.size() > 60 && random() % 3 == 0) {
      auto ahead = state;
      for (const char c : end) ahead = a.next(ahead, static_cast<uint8_t>(c));
      if (ahead != GrammarAutomaton::dead) {
        text += end, state = ahead;
        continue;
      }
    }
    for (const char c : {'}', ']'})
      if (text.size() > 2000 && a.next(state, static_cast<uint8_t>(c)) != GrammarAutomaton::dead)
        next = static_cast<uint8_t>(c);
    if (text.size() > 2000 && a.next(state, '"') != GrammarAutomaton::dead && random() % 2) next = '"';
    text += static_cast<char>(next);
    state = a.next(state, next);
    if (text.size() > 20'000) return;  // wandered too far to end; other seeds do
  }
  OutputParser parser(ParserOptions{});
  size_t calls = 0;
  bool done = false, wrong = false;
  const auto take = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& e : events) {
      calls += e.kind == OutputKind::call_begin;
      done |= e.kind == OutputKind::calls_done;
      wrong |= e.kind == OutputKind::malformed || e.kind == OutputKind::cut;
    }
  };
  take(parser.push(text));
  take(parser.finish());
  RC_ASSERT(!wrong);
  RC_ASSERT(done);
  RC_ASSERT(calls >= 1u);
}

}  // namespace
}  // namespace fathom::text
