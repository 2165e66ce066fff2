// Ids recorded from the Hugging Face `tokenizers` library; compare_tokenizer.py explains the files and makes more.
#include <cstdlib>

#include "base/utf8.h"
#include "support.h"

namespace fathom::text::testing {
namespace {

std::string bytes_of_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

void check_long(const Tokenizer& tokenizer, const JsonValue& c) {
  const std::string& unit = c.find("unit")->text;
  std::string text;
  for (int64_t n = std::stoll(c.find("times")->text); n > 0; --n) text += unit;
  std::vector<int32_t> expected;
  for (const JsonValue& run : c.find("runs")->items)
    expected.insert(expected.end(), static_cast<size_t>(std::stoll(run.items[1].text)), std::stoi(run.items[0].text));
  EXPECT_TRUE(tokenizer.encode(text, AddedTokens::recognise) == expected)
      << printable(unit) << " x " << c.find("times")->text;
}

void check_cases(const Tokenizer& tokenizer, const std::filesystem::path& path, size_t at_least) {
  const std::vector<JsonValue> cases = read_lines(path);
  ASSERT_GE(cases.size(), at_least);
  int failures = 0;
  for (const JsonValue& c : cases) {
    if (c.find("unit")) {
      check_long(tokenizer, c);
      continue;
    }
    const std::string text = c.find("hex") ? bytes_of_hex(c.find("hex")->text) : c.find("text")->text;
    const std::vector<int32_t> ids = int_list(*c.find("ids"));
    const std::vector<int32_t> plain = c.find("plain") ? int_list(*c.find("plain")) : ids;
    EXPECT_EQ(tokenizer.encode(text, AddedTokens::recognise), ids) << printable(text, 1000);
    EXPECT_EQ(tokenizer.encode(text, AddedTokens::as_text), plain) << printable(text, 1000);
    EXPECT_EQ(tokenizer.decode(ids), utf8_repaired(text));
    EXPECT_EQ(tokenizer.decode(plain), utf8_repaired(text));
    if (::testing::Test::HasFailure() && ++failures == 10) FAIL() << "more failures are not shown";
  }
}

TEST(TokenizerCases, IdsAreThoseOfTheReferenceLibraryOnTheInBoxVocabulary) {
  check_cases(fairy_tokenizer(), kRoot / "tests/text/data/tokenizer_cases.jsonl", 400);
}

TEST(TokenizerCases, IdsAreThoseOfTheReferenceLibraryOnTheV4Vocabulary) {
  if (!std::filesystem::exists(kV4Tokenizer))
    GTEST_SKIP() << "the V4 vocabulary is not here; tests/text/fetch_v4_tokenizer.py gets it";
  check_cases(Tokenizer::load(kV4Tokenizer), kRoot / "tests/text/data/v4_tokenizer_cases.jsonl", 300);
}

TEST(TokenizerCases, IdsAreThoseOfTheReferenceLibraryInTheCasesFileGiven) {
  const char* cases = std::getenv("TOKENIZER_CASES");
  const char* json = std::getenv("TOKENIZER_JSON");
  if (!cases || !json) GTEST_SKIP() << "compare_tokenizer.py runs this with TOKENIZER_CASES and TOKENIZER_JSON set";
  check_cases(Tokenizer::load(json), cases, 1);
}

TEST(TokenizerCases, IdsAreThoseOfTheModelsGoldens) {
  const JsonValue goldens = parse(read_file(kRoot / "tests/golden/tokenizer.json"));
  ASSERT_GE(goldens.items.size(), 60u);
  for (const JsonValue& c : goldens.items) {
    const std::string& text = c.find("text")->text;
    EXPECT_EQ(fairy_tokenizer().encode(text, AddedTokens::recognise), int_list(*c.find("ids"))) << printable(text);
    EXPECT_EQ(fairy_tokenizer().decode(int_list(*c.find("ids"))), text);
  }
}

TEST(TokenizerCases, TheV4VocabularyGivesTheIdsOfTheSpecification) {
  if (!std::filesystem::exists(kV4Tokenizer))
    GTEST_SKIP() << "the V4 vocabulary is not here; tests/text/fetch_v4_tokenizer.py gets it";
  const Tokenizer v4 = Tokenizer::load(kV4Tokenizer);
  const std::vector<std::pair<std::string, std::vector<int32_t>>> vectors = {
      {" ", {223}},
      {"\n\n", {271}},
      {"Hello, world!", {19923, 14, 2058, 3}},
      {"The capital of France is", {671, 6102, 294, 8760, 344}},
      {"1234567890", {6895, 18009, 25744, 18}},
      {"你好世界", {30594, 3427}},
      {"naïve café", {2720, 91223, 57664}},
      {"<｜DSML｜invoke name=\"f\">", {30, 128825, 40148, 5406, 2329, 1281, 72, 3320}},
      {"<｜begin▁of▁sentence｜><｜User｜><｜Assistant｜><think></think><｜end▁of▁sentence｜>",
       {0, 128803, 128804, 128821, 128822, 1}},
  };
  EXPECT_EQ(v4.vocab_size(), 129280);
  for (const auto& [text, ids] : vectors) EXPECT_EQ(v4.encode(text, AddedTokens::recognise), ids) << text;
}

}  // namespace
}  // namespace fathom::text::testing
