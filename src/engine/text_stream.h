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
  bool chat = false;               // parse thinking, content and tool calls; otherwise everything is content
  bool thinking = false;           // chat: the prompt ended with <think>
  std::vector<std::string> stop;   // stop strings, looked for in content only
  bool stop_in_reasoning = false;  // and in the reasoning
  bool include_stop = false;       // the stop string that was met is shown
  bool show_special = false;       // not chat: tokens marked special are shown
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
  bool stopped() const { return stop_.stopped() || (reasoning_stop_ && reasoning_stop_->stopped()); }
  /// Index of the stop string that was met, -1 if none was.
  int matched() const { return stop_.stopped() || !reasoning_stop_ ? stop_.matched() : reasoning_stop_->matched(); }

 private:
  TextPiece sort(std::vector<text::OutputEvent> events);
  void end_reasoning(TextPiece& piece);

  const text::Tokenizer& tokenizer_;
  text::Detokenizer detokenizer_;
  std::optional<text::OutputParser> parser_;
  text::StopMatcher stop_;
  std::optional<text::StopMatcher> reasoning_stop_;
};

}  // namespace fathom
