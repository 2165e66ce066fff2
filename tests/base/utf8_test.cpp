#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace fathom {
namespace {

TEST(Utf8, RoundTripsEveryScalarValue) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    const Utf8Char c = decode_utf8(text, 0);
    ASSERT_TRUE(c.valid) << code;
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.length, text.size());
  }
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndValuesPastTheEnd) {
  for (const char* bad :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80", "\x80", "\xFF"})
    EXPECT_FALSE(is_valid_utf8(bad)) << printable(bad);
}

TEST(Utf8, CompletePrefixHoldsBackOnlyACharacterThatCanStillBecomeWhole) {
  const std::string euro = "a\xE2\x82\xAC";
  EXPECT_EQ(utf8_complete_prefix(euro), 4u);
  EXPECT_EQ(utf8_complete_prefix(euro.substr(0, 3)), 1u);
  EXPECT_EQ(utf8_complete_prefix(euro.substr(0, 2)), 1u);
  EXPECT_EQ(utf8_complete_prefix("a\xFF"), 2u);
  EXPECT_EQ(utf8_complete_prefix("a\x80\x80\x80\x80"), 5u);
  EXPECT_EQ(utf8_complete_prefix(""), 0u);
}

TEST(Printable, KeepsTextAndEscapesControlCharactersAndInvalidBytes) {
  EXPECT_EQ(printable("na\xC3\xAFve"), "na\xC3\xAFve");
  EXPECT_EQ(printable("a\n\x1b[31m\xff"), "a\\x0a\\x1b[31m\\xff");
  EXPECT_EQ(printable(std::string(200, 'x'), 5), "xxxxx...");
}

}  // namespace
}  // namespace fathom
