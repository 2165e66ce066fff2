#include "text/json.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support.h"

namespace fathom::text::testing {
namespace {

std::string respelled(std::string_view json) {
  const JsonReading r = read_json(json);
  return r.value ? write_json(*r.value) : "not valid: " + r.error;
}

TEST(Json, NumbersAreRespelledAsPythonDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-17", "-17"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"2.50", "2.5"},
      {"1e0", "1.0"},
      {"1E-7", "1e-07"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"9999999999999999.0", "1e+16"},
      {"1.5e300", "1.5e+300"},
      {"100000.0", "100000.0"},
      {"0.1", "0.1"},
      {"5e-324", "5e-324"},
      {"2.2250738585072014e-308", "2.2250738585072014e-308"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"1e99999999999999999999", "Infinity"},
      {"1e-99999999999999999999", "0.0"},
      {"0.1000000000000000055511151231257827", "0.1"},
      {"NaN", "NaN"},
      {"Infinity", "Infinity"},
      {"-Infinity", "-Infinity"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"9007199254740993.0", "9007199254740992.0"},
  };
  for (const auto& [in, out] : cases) EXPECT_EQ(respelled(in), out) << in;
  // Range is a matter of all digits, not of the exponent alone.
  EXPECT_EQ(respelled("0." + std::string(400, '0') + "1"), "0.0");
  EXPECT_EQ(respelled("0." + std::string(400, '0') + "1e401"), "1.0");
  EXPECT_EQ(respelled("1" + std::string(400, '0') + ".0"), "Infinity");
  EXPECT_EQ(respelled("1" + std::string(400, '0') + "e-400"), "1.0");
}

TEST(Json, IsWrittenWithPythonsSeparatorsEscapesAndOrder) {
  EXPECT_EQ(respelled(R"({"b":1,"a":[1,2,{"c":"d"}],"e":{},"f":[]})"),
            R"({"b": 1, "a": [1, 2, {"c": "d"}], "e": {}, "f": []})");
  EXPECT_EQ(respelled(R"("\u0000\u0001\b\f\n\r\t\u001f\/\"\\\u007f\u2028\u017a\ud83d\ude00")"),
            "\"\\u0000\\u0001\\b\\f\\n\\r\\t\\u001f/\\\"\\\\\x7f\u2028ź😀\"");
}

TEST(Json, OfRepeatedKeysTheLastValueStandsAtTheFirstPosition) {
  EXPECT_EQ(respelled(R"({"a": 1, "b": 2, "a": 3})"), R"({"a": 3, "b": 2})");
  std::string many = "{", expected = "{";
  for (int i = 0; i < 40; ++i) {
    many += fmt::format("\"k{}\": {}, ", i, i);
    expected += fmt::format("\"k{}\": {}{}", i, i == 30 ? 99 : i, i < 39 ? ", " : "}");
  }
  EXPECT_EQ(respelled(many + "\"k30\": 99}"), expected);
}

TEST(Json, RefusesWhatPythonRefuses) {
  for (const char* bad : {"",           " ",
                          "{",          "[1,]",
                          "{\"a\":1,}", "{'a': 1}",
                          "{a: 1}",     "01",
                          "+1",         ".5",
                          "1.",         "1e",
                          "-",          "nul",
                          "True",       "\"a\nb\"",
                          "\"\\x41\"",  "\"\\u12\"",
                          "\"abc",      "1 2",
                          "{} // x",    "\xEF\xBB\xBF{}",
                          "[1 2]",      "{\"a\" 1}",
                          "\"\xff\"",   "\xC2\xA0{}",
                          "-NaN",       "[",
                          "]"})
    EXPECT_FALSE(read_json(bad).value) << bad;
  EXPECT_FALSE(read_json(std::string(4301, '1')).value);
  EXPECT_TRUE(read_json(std::string(4300, '1')).value);
  EXPECT_TRUE(read_json(std::string(4301, '1') + ".0").value);
}

TEST(Json, DeepNestingIsRefusedAndDoesNotOverflowTheStack) {
  EXPECT_TRUE(read_json(std::string(900, '[') + std::string(900, ']')).value);
  EXPECT_FALSE(read_json(std::string(1100, '[') + std::string(1100, ']')).value);
  EXPECT_FALSE(read_json(std::string(10'000'000, '[')).value);
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(read_json(objects).value);
}

TEST(Json, HalfASurrogatePairIsValidButNoticed) {
  EXPECT_TRUE(read_json(R"("\ud800x")").lone_surrogate);
  EXPECT_TRUE(read_json(R"("\udc00")").lone_surrogate);
  EXPECT_TRUE(read_json(R"("\ud800\u0041")").lone_surrogate);
  EXPECT_FALSE(read_json(R"("\ud83d\ude00")").lone_surrogate);
  EXPECT_FALSE(is_strict_json(R"("\ud800x")"));
}

TEST(Json, StrictMeansThatEveryLibraryReadsIt) {
  for (const char* good : {"1", " [1, 2] \n", "{\"a\": null}", "\"x\"", "1e400"})
    EXPECT_TRUE(is_strict_json(good)) << good;
  for (const char* bad : {"NaN", "Infinity", "[NaN]", "True", "[1,]", "", "1, 2"})
    EXPECT_FALSE(is_strict_json(bad)) << bad;
}

TEST(Json, TruthIsPythons) {
  for (const char* falsy : {"null", "false", "0", "-0", "0.0", "-0.0", "0e5", "\"\"", "[]", "{}"})
    EXPECT_FALSE(read_json(falsy).value->truthy()) << falsy;
  for (const char* truthy : {"true", "1", "0.1", "\" \"", "[0]", "{\"a\": 0}", "NaN"})
    EXPECT_TRUE(read_json(truthy).value->truthy()) << truthy;
}

RC_GTEST_PROP(Json, WritingIsStableUnderReading, (const std::string& raw)) {
  const std::string quoted = json_quoted(raw);
  const JsonReading r = read_json(quoted);
  if (!r.value) return;  // raw was not UTF-8
  RC_ASSERT(r.value->text == raw);
  RC_ASSERT(write_json(*r.value) == quoted);
}

RC_GTEST_PROP(Json, ReadingNeverFailsOtherwiseThanBySayingSo, (std::string text)) {
  constexpr std::string_view kAlphabet = "{}[]\",:\\u0123e.-+ntrufalse \n";
  for (char& c : text) c = kAlphabet[static_cast<unsigned char>(c) % kAlphabet.size()];
  const JsonReading r = read_json(text);
  RC_ASSERT(r.value.has_value() == r.error.empty());
  if (r.value) RC_ASSERT(write_json(*read_json(write_json(*r.value)).value) == write_json(*r.value));
}

}  // namespace
}  // namespace fathom::text::testing
