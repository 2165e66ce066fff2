#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "base/utf8.h"
#include "support.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split_pattern.h"

namespace fathom::text::testing {
namespace {

/// A small tokenizer.json with all bytes, the given fields put in place of its own.
std::string small_json(const std::vector<std::pair<std::string, std::string>>& changes = {}) {
  JsonValue vocab;
  vocab.kind = JsonValue::Kind::object;
  int next = 0;
  for (int b = 0, other = 256; b < 256; ++b) {
    std::string token;
    append_utf8(token, (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? static_cast<uint32_t>(b)
                                                                                   : static_cast<uint32_t>(other++));
    vocab.members.emplace_back(token, parse(std::to_string(next++)));
  }
  for (const char* token : {"ab", "abc"}) vocab.members.emplace_back(token, parse(std::to_string(next++)));
  std::vector<std::pair<std::string, std::string>> fields = {
      {"normalizer", "null"},
      {"pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})"},
      {"post_processor", "null"},
      {"decoder", R"({"type": "ByteLevel"})"},
      {"added_tokens",
       R"([{"id": 258, "content": "<x>", "special": true}, {"id": 259, "content": "<xy>", "special": false}])"},
      {"dropout", "null"},
      {"merges", R"(["a b", ["ab", "c"]])"},
      {"vocab", write_json(vocab)},
  };
  for (const auto& [key, value] : changes) {
    bool known = false;
    for (auto& field : fields)
      if (field.first == key) field.second = value, known = true;
    if (!known) fields.insert(fields.begin(), {key, value});
  }
  std::string top, model = "\"type\": \"BPE\"";
  for (const auto& [key, value] : fields) {
    const bool in_model = key == "vocab" || key == "merges" || key == "dropout" || key == "byte_fallback" ||
                          key == "ignore_merges" || key == "unk_token" || key == "model_extra";
    (in_model ? model : top) += ", \"" + key + "\": " + value;
  }
  return "{\"version\": \"1.0\"" + top + ", \"model\": {" + model + "}}";
}

std::string error_of(const std::string& json) {
  try {
    Tokenizer::from_json(json, "t.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "(accepted)";
}

TEST(Tokenizer, EncodesWithMergesAndAddedTokens) {
  const Tokenizer t = Tokenizer::from_json(small_json(), "t.json");
  EXPECT_EQ(t.vocab_size(), 260);
  const int32_t a = 'a', x = 'x';  // the ids of bytes are the bytes in this vocabulary
  EXPECT_EQ(t.encode("abc<xy>ab", AddedTokens::recognise), (std::vector<int32_t>{257, 259, 256}));
  EXPECT_EQ(t.encode("a<x>x", AddedTokens::recognise), (std::vector<int32_t>{a, 258, x}));
  EXPECT_EQ(t.encode("<x>", AddedTokens::as_text), (std::vector<int32_t>{'<', 'x', '>'}));
  EXPECT_TRUE(t.encode("", AddedTokens::recognise).empty());
  EXPECT_EQ(t.decode(std::vector<int32_t>{257, 258, 256}), "abc<x>ab");
  EXPECT_EQ(t.decode(std::vector<int32_t>{257, 258, 256}, true), "abcab");
  EXPECT_TRUE(t.is_special(258) && t.is_added(258) && t.is_added(259));
  EXPECT_FALSE(t.is_special(259) || t.is_added(256) || t.is_special(-1) || t.is_added(1000));
  EXPECT_EQ(t.added_id("<xy>"), 259);
  EXPECT_FALSE(t.added_id("abc"));
  EXPECT_THROW(t.decode(std::vector<int32_t>{260}), Error);
  EXPECT_THROW(t.bytes(-1), Error);
}

TEST(Tokenizer, WithIgnoreMergesAPieceThatIsATokenIsThatToken) {
  const std::string no_merges = "[]";
  EXPECT_EQ(Tokenizer::from_json(small_json({{"merges", no_merges}}), "t").encode("abc", AddedTokens::as_text).size(),
            3u);
  EXPECT_EQ(Tokenizer::from_json(small_json({{"merges", no_merges}, {"ignore_merges", "true"}}), "t")
                .encode("abc", AddedTokens::as_text),
            (std::vector<int32_t>{257}));
}

TEST(Tokenizer, TokensMarkedNormalizedAreSearchedInWhatTheOthersLeave) {
  const std::string added =
      R"([{"id": 258, "content": "ab<", "special": false, "normalized": true}, {"id": 259, "content": "<x>", "normalized": false}])";
  const Tokenizer t = Tokenizer::from_json(small_json({{"added_tokens", added}}), "t");
  EXPECT_EQ(t.encode("ab<x>", AddedTokens::recognise), (std::vector<int32_t>{256, 259}));
  EXPECT_EQ(t.encode("ab<y", AddedTokens::recognise), (std::vector<int32_t>{258, 'y'}));
}

TEST(Tokenizer, RefusesWhatItDoesNotSupportByName) {
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> cases = {
      {{"normalizer", R"({"type": "NFC"})"}, "normalizer NFC"},
      {{"post_processor", R"({"type": "TemplateProcessing"})"}, "post_processor TemplateProcessing"},
      {{"decoder", R"({"type": "Metaspace"})"}, "decoder is not ByteLevel"},
      {{"pre_tokenizer", R"({"type": "Whitespace"})"}, "pre_tokenizer Whitespace"},
      {{"pre_tokenizer", R"({"type": "Sequence", "pretokenizers": []})"}, "does not end with ByteLevel"},
      {{"pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": false})"}, "add_prefix_space"},
      {{"pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": false})"}, "use_regex"},
      {{"pre_tokenizer",
        R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated"}]})"},
       "Regex"},
      {{"pre_tokenizer",
        R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": " "}, "behavior": "Removed"}]})"},
       "Removed"},
      {{"pre_tokenizer",
        R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})"},
       "\\w"},
      {{"truncation", R"({"max_length": 5})"}, "truncation"},
      {{"padding", R"({"length": 5})"}, "padding"},
      {{"surprise", "1"}, "surprise"},
      {{"dropout", "0.1"}, "dropout"},
      {{"byte_fallback", "true"}, "byte_fallback"},
      {{"unk_token", "\"<unk>\""}, "unk_token"},
      {{"model_extra", "1"}, "model_extra"},
      {{"merges", R"(["a z1"])"}, "z1"},
      {{"merges", R"(["ab"])"}, "merge 0"},
      {{"merges", R"([1])"}, "merge 0"},
      {{"added_tokens", R"([{"id": 258, "content": "<x>", "lstrip": true}])"}, "lstrip"},
      {{"added_tokens", R"([{"id": 258, "content": "<x>", "single_word": true}])"}, "single_word"},
      {{"added_tokens", R"([{"id": 258, "content": ""}])"}, "empty"},
      {{"added_tokens", R"([{"id": 5, "content": "<x>"}])"}, "share the id 5"},
      {{"added_tokens", R"([{"id": 99, "content": "ab"}])"}, "256 in the vocabulary"},
      {{"added_tokens", R"([{"id": -1, "content": "<x>"}])"}, "id"},
      {{"added_tokens", R"([{"id": 1e9, "content": "<x>"}])"}, "id"},
      {{"added_tokens", R"([{"id": 99999999999999999999, "content": "<x>"}])"}, "id"},
      {{"vocab", R"({"a": 0})"}, "no token for byte 0x00"},
      {{"vocab", R"({"a": 0, "b": 0})"}, "share the id 0"},
      {{"vocab", "[]"}, "vocab"},
  };
  for (const auto& [change, expected] : cases) {
    const std::string error = error_of(small_json({change}));
    EXPECT_TRUE(error.starts_with("t.json: ")) << error;
    EXPECT_NE(error.find(expected), error.npos) << error << " for " << change.first << " = " << change.second;
    EXPECT_EQ(error.find('\n'), error.npos) << error;
  }
  for (const char* bad : {"", "[]", "null", "{}", "{\"model\": {}}", "{", "\xff"})
    EXPECT_NE(error_of(bad), "(accepted)") << bad;
  EXPECT_THROW(Tokenizer::load("no/such/tokenizer.json"), Error);
}

TEST(Tokenizer, BrokenUtf8IsRepairedFirst) {
  const Tokenizer& t = fairy_tokenizer();
  EXPECT_EQ(t.encode("a\xE2\x82"
                     "b\xFF\xFE",
                     AddedTokens::recognise),
            t.encode("a\uFFFDb\uFFFD\uFFFD", AddedTokens::recognise));
}

TEST(Tokenizer, MayBeSharedBetweenThreads) {
  const Tokenizer t = Tokenizer::load(kRoot / "models/fairy/tokenizer.json");
  const std::string text = "Once upon a time there was a king who had three daughters. 1234 naïve 你好 <think>";
  const std::vector<int32_t> expected = fairy_tokenizer().encode(text, AddedTokens::recognise);
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) equal += t.encode(text, AddedTokens::recognise) == expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 200);
}

TEST(Tokenizer, VeryLongRunsAreEncodedInOnePass) {
  const Tokenizer& t = fairy_tokenizer();
  for (const char* unit : {"a", " ", "\n", "é", "!", "中", " a", "\x01", "ab"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(t.decode(t.encode(text, AddedTokens::recognise)), text) << unit;
  }
}

RC_GTEST_PROP(TokenizerProperty, DecodingGivesTheTextBack, (const std::string& raw)) {
  const Tokenizer& t = fairy_tokenizer();
  for (const AddedTokens added : {AddedTokens::recognise, AddedTokens::as_text})
    RC_ASSERT(t.decode(t.encode(raw, added)) == utf8_repaired(raw));
}

/// What the merges say, without any cleverness.
std::vector<int32_t> naive(std::string_view piece, const std::vector<Bpe::Merge>& merges) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  for (;;) {
    size_t best = ids.size(), rank = merges.size();
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (size_t r = 0; r < rank; ++r)
        if (merges[r].left == ids[i] && merges[r].right == ids[i + 1]) best = i, rank = r;
    if (best == ids.size()) return ids;
    ids[best] = merges[rank].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

RC_GTEST_PROP(BpeProperty, LongAndShortPiecesAreMergedByRankFromTheLeft, ()) {
  std::array<int32_t, 256> bytes;
  for (int i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
  // Random rules over 'a', 'b' and what earlier rules made, so that low ranks may need tokens of high ranks.
  std::vector<Bpe::Merge> merges;
  std::set<std::pair<int32_t, int32_t>> pairs;
  const int n = *rc::gen::inRange(1, 12);
  const auto symbol = [&] {
    return *rc::gen::weightedOneOf<int32_t>(
        {{2, rc::gen::element<int32_t>('a', 'b')}, {1, rc::gen::inRange<int32_t>(1000, 1000 + n)}});
  };
  for (int i = 0; i < n; ++i) {
    const Bpe::Merge m{symbol(), symbol(), 1000 + i};
    if (pairs.insert({m.left, m.right}).second) merges.push_back(m);
  }
  const auto length = *rc::gen::inRange<size_t>(1, 120);
  const auto piece = *rc::gen::container<std::string>(length, rc::gen::element('a', 'b'));
  std::vector<int32_t> ids;
  Bpe(bytes, merges).encode(piece, ids);
  RC_ASSERT(ids == naive(piece, merges));
}

TEST(TokenTrie, FindsTheLongestStringAtTheLeftmostPlace) {
  TokenTrie trie;
  trie.add("ab", 1), trie.add("abcd", 2), trie.add("bc", 3), trie.add("\xEF\xBC", 4);
  TokenTrie::Match m{};
  ASSERT_TRUE(trie.find("xabcx", 0, m));
  EXPECT_EQ(m.begin, 1u);
  EXPECT_EQ(m.end, 3u);
  EXPECT_EQ(m.id, 1);
  ASSERT_TRUE(trie.find("abcd", 0, m));
  EXPECT_EQ(m.id, 2);
  ASSERT_TRUE(trie.find("abcd", 1, m));
  EXPECT_EQ(m.id, 3);
  EXPECT_FALSE(trie.find("acb", 0, m));
  EXPECT_FALSE(trie.find("", 0, m));
}

TEST(SplitPattern, NamesTheConstructThatCouldMeanSomethingElse) {
  for (const char* pattern :
       {"\\w",         "\\bx", "^a",  "a$",      "(?i:a)",     "(?<n>a)", "a{2}+",    "[a[b]]", "[a&&b]",
        "[[:alpha:]]", "\\h",  "\\R", "\\p{Lu}", "\\p{Greek}", "[\\S]",   "[\\P{L}]", "\\1",    "\\x41",
        "a{,3}",       "{",    "[",   "(",       "a\\",        "*",       "\xff",     "\\u12",  "(?#c)"})
    EXPECT_THROW(SplitPattern{pattern}, Error) << pattern;
  for (const char* pattern : {"\\p{N}{1,3}", "[^\\r\\n\\p{L}]?x+", "\\s+(?!\\S)", "(?<=a)b|c*?|d++", "[一-龥]+",
                              "\\u4e00", "a{2,}", "\\P{N}", "."})
    EXPECT_NO_THROW(SplitPattern{pattern}) << pattern;
}

TEST(SplitPattern, WhiteSpaceAndCategoriesAreThoseOfUnicode16) {
  MatchScratch scratch;
  size_t begin, end;
  const auto matches = [&](const char* pattern, uint32_t code) {
    std::string text;
    append_utf8(text, code);
    return SplitPattern(pattern).find(text, 0, scratch, begin, end);
  };
  EXPECT_TRUE(matches("\\s", 0x85) && matches("\\s", 0x3000) && matches("\\s", 0xB));
  EXPECT_FALSE(matches("\\s", 0x180E) || matches("\\s", 0x200B) || matches("\\S", 0x2028));
  EXPECT_TRUE(matches("\\S", 0x180E));
  EXPECT_TRUE(matches("\\p{L}", 0x31350) && matches("\\p{L}", 0x1C89) && matches("\\p{N}", 0x1CCF0) &&
              matches("\\p{S}", 0x1FAE9));
  EXPECT_FALSE(matches("\\p{L}", 0x323B0) || matches("\\P{L}", 0x31350) || matches("[^\\p{L}]", 0x31350));
}

}  // namespace
}  // namespace fathom::text::testing
