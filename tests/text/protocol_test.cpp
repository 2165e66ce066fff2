#include "text/protocol.h"

#include "base/utf8.h"
#include "sha256.h"
#include "support.h"

namespace fathom::text::testing {
namespace {

TEST(Sha256, GivesTheValuesOfItsStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Protocol, FixedTextsHaveTheLengthsAndSumsOfTheSpecification) {
  struct {
    std::string text;
    size_t bytes, characters;
    const char* sum;
  } const texts[] = {
      {std::string(protocol::kEffortAbsolute), 476, 476,
       "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"},
      {std::string(protocol::kEffortBeyond), 528, 526,
       "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"},
      {std::string(protocol::kToolsBefore) + std::string(protocol::kToolsAfter), 989, 953,
       "c7d3159308f7d076bee8974ece110fda1f92f6e577306e602ba2b466b4dcd904"},
      {std::string(protocol::kResponseFormat), 80, 80,
       "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112"},
  };
  for (const auto& t : texts) {
    size_t characters = 0;
    for (size_t at = 0; at < t.text.size(); at += decode_utf8(t.text, at).length) ++characters;
    EXPECT_EQ(t.text.size(), t.bytes) << t.text;
    EXPECT_EQ(characters, t.characters) << t.text;
    EXPECT_EQ(sha256(t.text), t.sum) << t.text;
  }
}

TEST(Protocol, EveryControlTokenIsOneTokenOfTheInBoxModel) {
  for (const std::string_view token : {protocol::kBegin, protocol::kEnd, protocol::kUser, protocol::kAssistant,
                                       protocol::kThink, protocol::kThinkEnd, protocol::kDsml, protocol::kReminder})
    EXPECT_TRUE(fairy_tokenizer().added_id(token)) << token;
  for (const protocol::Task& task : protocol::kTasks) EXPECT_TRUE(fairy_tokenizer().added_id(task.token)) << task.token;
}

}  // namespace
}  // namespace fathom::text::testing
