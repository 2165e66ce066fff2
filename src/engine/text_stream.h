// Token ids of one request to text as it is shown: whole characters, thinking and answer told apart, stop strings cut
// off.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop.h"

namespace fathom {

struct TextOptions {
  bool chat = false;              // parse thinking, content and tool calls; otherwise everything is content
  bool thinking = false;          // chat: the prompt ended with <think>
  std::vector<std::string> stop;  // stop strings, looked for in content only
};

/// What a token added.
struct TextPiece {
  std::string reasoning, content;
  std::vector<text::OutputEvent> calls;  // tool call events and errors, in order
};

class TextStream {
 public:
  /// `tokenizer` outlives the stream. Throws Error for a bad stop string.
  TextStream(const text::Tokenizer& tokenizer, const TextOptions& options);

  /// A model has rows that no token belongs to (its vocabulary is rounded up); such an id shows as U+FFFD.
  TextPiece push(int32_t token);
  /// The rest, when generation has ended.
  TextPiece finish();
  /// A stop string was met: the request should end.
  bool stopped() const { return stop_.stopped(); }

 private:
  TextPiece sort(std::vector<text::OutputEvent> events);

  const text::Tokenizer& tokenizer_;
  text::Detokenizer detokenizer_;
  std::optional<text::OutputParser> parser_;
  text::StopMatcher stop_;
};

}  // namespace fathom
