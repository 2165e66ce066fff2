// Stop strings and the streaming detokeniser: what is shown while text is being made.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/utf8.h"
#include "support.h"
#include "text/detokenizer.h"
#include "text/stop.h"

namespace fathom::text::testing {
namespace {

TEST(StopMatcher, ShowsTextBeforeTheStopStringAndNothingAfter) {
  StopMatcher m({"END"});
  EXPECT_EQ(m.push("one E"), "one ");
  EXPECT_EQ(m.push("N"), "");
  EXPECT_EQ(m.push("x E"), "ENx ");
  EXPECT_EQ(m.push("ND more"), "");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.matched(), 0);
  EXPECT_EQ(m.push("more"), "");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, ReleasesWhatItHeldWhenTheTextEnds) {
  StopMatcher m({"\n\n", "User:"});
  EXPECT_EQ(m.push("a\nUse"), "a\n");
  EXPECT_EQ(m.finish(), "Use");
  EXPECT_FALSE(m.stopped());
}

TEST(StopMatcher, FindsAStopStringInsideARepetitionOfItsBeginning) {
  StopMatcher m({"aab"});
  EXPECT_EQ(m.push("aaaa"), "aa");
  EXPECT_EQ(m.push("ab."), "a");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, OfTwoThatEndTogetherTheLongerCountsOtherwiseTheFirstToEnd) {
  StopMatcher m({"b", "ab"});
  EXPECT_EQ(m.push("xab"), "x");
  EXPECT_EQ(m.matched(), 1);
  StopMatcher n({"abcd", "bc"});
  EXPECT_EQ(n.push("xabcd"), "xa");
  EXPECT_EQ(n.matched(), 1);
}

TEST(StopMatcher, CanShowTheStopStringToo) {
  StopMatcher m({"END"}, true);
  EXPECT_EQ(m.push("aENDb"), "aEND");
  EXPECT_EQ(StopMatcher({}).push("abc"), "abc");
}

TEST(StopMatcher, RefusesEmptyAndBrokenStopStrings) {
  EXPECT_THROW(StopMatcher({"a", ""}), Error);
  EXPECT_THROW(StopMatcher({"\xFF"}), Error);
}

RC_GTEST_PROP(StopMatcher, ShowsTheTextUpToTheFirstStopStringHoweverItIsCut, ()) {
  const auto letters = rc::gen::elementOf(std::string("ab"));
  const auto text = *rc::gen::container<std::string>(letters);
  const auto stops =
      *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(rc::gen::container<std::string>(letters)));
  size_t end = text.size() + 1, length = 0;
  for (const std::string& stop : stops)
    if (const size_t at = text.find(stop); at != text.npos)
      if (at + stop.size() < end || (at + stop.size() == end && stop.size() > length))
        end = at + stop.size(), length = stop.size();
  const std::string expected = end > text.size() ? text : text.substr(0, end - length);
  const auto step = *rc::gen::inRange<size_t>(1, 5);
  StopMatcher m(stops);
  std::string shown;
  for (size_t at = 0; at < text.size(); at += step) {
    shown += m.push(std::string_view(text).substr(at, step));
    RC_ASSERT(expected.compare(0, shown.size(), shown) == 0);
  }
  shown += m.finish();
  RC_ASSERT(shown == expected);
  RC_ASSERT(m.stopped() == (end <= text.size()));
}

TEST(Detokenizer, HoldsBackUnfinishedCharactersAndShowsThemWhole) {
  const Tokenizer& t = fairy_tokenizer();
  const std::vector<int32_t> ids = t.encode("a€😀", AddedTokens::recognise);
  ASSERT_GT(ids.size(), 3u);
  Detokenizer d(t);
  std::string all;
  for (const int32_t id : ids) {
    const std::string piece = d.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    all += piece;
  }
  EXPECT_EQ(all, "a€😀");
  EXPECT_EQ(d.finish(), "");
}

TEST(Detokenizer, ShowsTheReplacementCharacterForWhatNeverBecomesOne) {
  const Tokenizer& t = fairy_tokenizer();
  const std::vector<int32_t> euro = t.encode("€", AddedTokens::recognise);
  ASSERT_EQ(euro.size(), 3u);
  Detokenizer d(t);
  EXPECT_EQ(d.push(euro[0]), "");
  EXPECT_EQ(d.push(euro[0]), "\uFFFD");
  EXPECT_EQ(d.push(euro[1]), "");
  EXPECT_EQ(d.finish(), "\uFFFD");
  EXPECT_EQ(d.push(euro[2]), "\uFFFD");
}

TEST(Detokenizer, HidesSpecialTokensWhenAsked) {
  const Tokenizer& t = fairy_tokenizer();
  Detokenizer shown(t), hidden(t, SpecialTokens::hide);
  const int32_t end = *t.added_id("<｜end▁of▁sentence｜>"), think = *t.added_id("</think>");
  EXPECT_EQ(shown.push(end), "<｜end▁of▁sentence｜>");
  EXPECT_EQ(hidden.push(end), "");
  EXPECT_EQ(hidden.push(think), "</think>");  // added, but not special
  EXPECT_THROW(shown.push(-1), Error);
  EXPECT_THROW(shown.push(t.vocab_size()), Error);
}

RC_GTEST_PROP(Detokenizer, PiecesTogetherAreTheDecodedText, ()) {
  const Tokenizer& t = fairy_tokenizer();
  const auto raw = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(0, t.vocab_size()));
  std::vector<int32_t> ids;
  for (const int32_t id : raw)
    if (t.has(id)) ids.push_back(id);
  for (const bool hide : {false, true}) {
    Detokenizer d(t, hide ? SpecialTokens::hide : SpecialTokens::show);
    std::string all;
    for (const int32_t id : ids) all += d.push(id);
    all += d.finish();
    RC_ASSERT(all == t.decode(ids, hide));
  }
}

}  // namespace
}  // namespace fathom::text::testing
