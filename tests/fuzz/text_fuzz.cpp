// libFuzzer target for the text layer: whatever comes in, it must not crash, and what it promises must hold. The first
// byte picks the part, the second is spent on options.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "fuzz/small_tokenizer.h"
#include "text/chat.h"
#include "text/chat_json.h"
#include "text/detokenizer.h"
#include "text/json.h"
#include "text/output_parser.h"
#include "text/stop.h"
#include "text/tokenizer.h"

namespace {

using namespace fathom;
using namespace fathom::text;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::from_json(fuzz::small_tokenizer(), "fuzz");
  return t;
}

void fuzz_tokenizer(std::string_view text, uint8_t option) {
  const auto ids = tokenizer().encode(text, option & 1 ? AddedTokens::recognise : AddedTokens::as_text);
  require(tokenizer().decode(ids) == utf8_repaired(text), "decoding gives the text back");
  Detokenizer stream(tokenizer());
  std::string all;
  for (const int32_t id : ids) all += stream.push(id);
  require(all + stream.finish() == utf8_repaired(text), "streaming gives the text back");
}

void fuzz_parser(std::string_view text, uint8_t option) {
  const ParserOptions options{.thinking = (option & 1) != 0,
                              .delivery = option & 2 ? CallDelivery::whole : CallDelivery::streamed};
  const ParsedOutput once = parse_output(text, options);
  ParsedOutput cut;
  OutputParser parser(options);
  const size_t step = 1 + (option >> 2) % 7;
  for (size_t at = 0; at < text.size(); at += step)
    for (const OutputEvent& e : parser.push(text.substr(at, step))) cut.add(e);
  for (const OutputEvent& e : parser.finish()) cut.add(e);
  require(once.content == cut.content && once.reasoning == cut.reasoning && once.leftover == cut.leftover &&
              once.errors == cut.errors && once.calls.size() == cut.calls.size(),
          "events do not depend on cuts");
  for (size_t i = 0; i < once.calls.size(); ++i) {
    require(is_strict_json(once.calls[i].arguments), "arguments are JSON");
    require(once.calls[i].arguments == cut.calls[i].arguments && once.calls[i].name == cut.calls[i].name, "same calls");
  }
}

void fuzz_chat(std::string_view text, uint8_t option) {
  ChatOptions options{.thinking_mode = option & 1 ? "thinking" : "chat", .drop_thinking = (option & 2) != 0};
  options.revision = option & 4 ? Revision::preview : Revision::r0731;
  if (option & 8) options.reasoning_effort = "max";
  const auto segments = encode_chat(messages_from_json(text, "messages"), options);
  require(is_valid_utf8(prompt_text(segments)), "prompts are UTF-8");
  require(tokenizer().decode(prompt_ids(segments, tokenizer())) == prompt_text(segments),
          "ids are those of the prompt");
}

void fuzz_json(std::string_view text) {
  const JsonReading r = read_json(text);
  require(r.value.has_value() == r.error.empty(), "a value or an error");
  if (!r.value || r.lone_surrogate) return;
  const std::string written = write_json(*r.value);
  const JsonReading again = read_json(written);
  require(again.value && write_json(*again.value) == written, "writing is stable");
}

void fuzz_stop(std::string_view text, uint8_t option) {
  const size_t n = std::min<size_t>(text.size(), 1 + option % 8);
  StopMatcher matcher({std::string(text.substr(0, n))});
  std::string shown;
  for (const char c : text.substr(n)) shown += matcher.push({&c, 1});
  shown += matcher.finish();
  require(shown == text.substr(n, text.substr(n).find(text.substr(0, n))), "text up to the stop string");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    switch (data[0] % 6) {
      case 0:
        fuzz_tokenizer(text, data[1]);
        break;
      case 1:
        fuzz_parser(text, data[1]);
        break;
      case 2:
        fuzz_chat(text, data[1]);
        break;
      case 3:
        fuzz_json(text);
        break;
      case 4:
        fuzz_stop(text, data[1]);
        break;
      default:
        Tokenizer::from_json(text, "fuzz");
    }
  } catch (const Error&) {
  }
  return 0;
}
