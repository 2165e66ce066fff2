#include "engine/stand_in_tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/json.h"
#include "text/protocol.h"

namespace fathom {

text::Tokenizer stand_in_tokenizer(int32_t vocab) {
  if (vocab < kStandInLeast) fail("a vocabulary of {} is too small for the stand-in tokenizer", vocab);
  namespace protocol = text::protocol;
  std::string tokens, added;
  int32_t id = 0;
  const auto add_control = [&](std::string_view token, bool special) {
    added += fmt::format("{}{{\"id\":{},\"content\":{},\"special\":{}}}", added.empty() ? "" : ",", id++,
                         text::json_quoted(std::string(token)), special);
  };
  add_control(protocol::kBegin, true);
  add_control(protocol::kEnd, true);
  for (const auto token : {protocol::kUser, protocol::kAssistant, protocol::kThink, protocol::kThinkEnd,
                           protocol::kDsml, protocol::kReminder})
    add_control(token, false);
  for (const auto& task : protocol::kTasks) add_control(task.token, false);
  const auto add = [&](const std::string& token) {
    tokens += fmt::format("{}{}:{}", tokens.empty() ? "" : ",", text::json_quoted(token), id++);
  };
  for (const uint32_t character : text::byte_alphabet()) {
    std::string token;
    append_utf8(token, character);
    add(token);
  }
  while (id < vocab) add(fmt::format("\u0120~{}", id));  // U+0120 stands for a blank
  return text::Tokenizer::from_json(
      R"({"version":"1.0","added_tokens":[)" + added + R"(],"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
          R"({"type":"Split","pattern":{"Regex":" ?[^ ]+"},"behavior":"Isolated"},)" +
          R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)" +
          R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" + tokens + R"(},"merges":[]}})",
      "stand-in tokenizer");
}

}  // namespace fathom
