// What the load generator reads from servers: streams of events and whole answers. The first byte says how the stream
// is cut. No bytes may crash it, and a record must not depend on how the network cut the stream.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "bench/stream.h"

namespace {

using namespace fathom;
using namespace fathom::bench;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

RequestRecord read_stream(std::string_view body, size_t step) {
  RequestRecord record;
  AnswerStream stream(record);
  for (size_t at = 0; at < body.size(); at += step) stream.feed(body.substr(at, step), 1.0);
  stream.finish(2.0);
  return record;
}

void require_line(std::string_view text) {
  require(is_valid_utf8(text) && text.find('\n') == text.npos, "a message that is not one line of UTF-8");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RequestRecord whole = read_stream(body, body.size() + 1), cut = read_stream(body, 1 + data[0] % 17);
  require(whole.error == cut.error && whole.finish == cut.finish && whole.looping == cut.looping &&
              whole.pieces.size() == cut.pieces.size() && whole.prompt_tokens == cut.prompt_tokens &&
              whole.output_tokens == cut.output_tokens && whole.cached_tokens == cut.cached_tokens &&
              whole.reasoning_tokens == cut.reasoning_tokens,
          "a record does not depend on cuts");
  require_line(whole.error);

  RequestRecord answer;
  read_answer(body, 1.0, answer);
  require_line(answer.error);
  require_line(error_text(500, body));
  require(is_valid_utf8(first_model(body)), "the id of a model is UTF-8");
  return 0;
}
