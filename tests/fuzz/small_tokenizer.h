// A tokenizer small enough to be made at the start of a fuzz target.
#pragma once

#include <string>

#include "base/utf8.h"
#include "text/json.h"

namespace fathom::fuzz {

/// A vocabulary of the 256 bytes, a few merges and the control tokens.
inline std::string small_tokenizer() {
  std::string vocab, added;
  int id = 0;
  for (int b = 0, other = 256; b < 256; ++b) {
    std::string token;
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    append_utf8(token, static_cast<uint32_t>(printable ? b : other++));
    vocab += (b ? "," : "") + text::json_quoted(token) + ":" + std::to_string(id++);
  }
  for (const char* token : {"aa", "aaaa", "th", "the"})
    vocab += "," + text::json_quoted(token) + ":" + std::to_string(id++);
  for (const char* token : {"<think>", "</think>", "｜DSML｜", "<｜User｜>", "<｜Assistant｜>",
                            "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜latest_reminder｜>", "<｜action｜>",
                            "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"})
    added += (added.empty() ? "" : ",") + std::string("{\"id\":") + std::to_string(id++) +
             ",\"content\":" + text::json_quoted(token) + "}";
  return R"({"version":"1.0","added_tokens":[)" + added +
         R"(],"pre_tokenizer":{"type":"Sequence","pretokenizers":[
           {"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated"},
           {"type":"Split","pattern":{"Regex":"[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated"},
           {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},
         "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
         vocab + R"(},"merges":["a a","aa aa","t h","th e"]}})";
}

}  // namespace fathom::fuzz
