// What the model says, as events: reasoning, content and tool calls, while it is being said.
//
// The text may arrive cut anywhere, even inside a character: the events, with neighbouring deltas joined, are the same.
// The parser reads everything that the official one reads, tolerates other white space and attribute spellings, and
// never crashes on anything. What it promises:
//  - a call counts only when its whole block was closed (calls_done). A block that is broken or cut off gives no calls;
//  - the arguments of a finished call are one valid JSON object; of an unfinished call they are never valid JSON;
//  - no text is lost: broken markup comes out as content, cut markup in the event that says so.
// Grammar: DeepSeek-V4 notes, section 6.1, "Parser".
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/code_fence.h"

namespace fathom::text {

enum class OutputKind {
  reasoning,       // text: a piece of the reasoning
  content,         // text: a piece of the answer
  call_begin,      // text: name of the function; `call` counts from 0
  call_arguments,  // text: a piece of the arguments, JSON
  call_end,        // the call is complete; text: a note when an argument was not JSON and was passed on as a string
  calls_done,      // the block was closed: every call so far stands
  malformed,       // text: what is wrong. Calls since the last calls_done are void; their markup follows as content.
                   // Text behind the end token comes in `raw`
  cut,  // text: where the output ended too early. Calls since the last calls_done are void; `raw`: the markup
};

struct OutputEvent {
  OutputKind kind = OutputKind::content;
  std::string text;
  int call = -1;
  std::string raw;
  friend bool operator==(const OutputEvent&, const OutputEvent&) = default;
};

/// When the events of a call are given out.
enum class CallDelivery {
  streamed,  // at once; a later malformed or cut event takes them back
  whole,     // when the block has been closed and counts; nothing is ever taken back
};

struct ParserOptions {
  bool thinking = false;  // the prompt ended with <think>
  CallDelivery delivery = CallDelivery::streamed;
};

/// One output. Special tokens must be in the text as they are spelled (SpecialTokens::show).
class OutputParser {
 public:
  explicit OutputParser(const ParserOptions& options);

  /// Takes the next text. Bytes that are not UTF-8 become U+FFFD. Time is linear in all text together.
  std::vector<OutputEvent> push(std::string_view text);
  /// The output is over.
  std::vector<OutputEvent> finish();

 private:
  enum class State { start, reasoning, content, block, invoke, value, after_block, ended };
  enum class Match { no, partial, yes };

  bool step(bool final);
  bool at_start(bool final);
  bool in_reasoning(bool final);
  bool in_content(bool final);
  bool in_block(bool final);
  bool in_invoke(bool final);
  bool in_value(bool final);
  bool after_block(bool final);

  bool open_block(size_t space, size_t tag_end);
  bool read_tag(size_t head, bool final);
  bool begin_call(std::string_view attributes);
  bool begin_parameter(std::string_view attributes);
  void value_text(std::string_view text);
  void end_value();
  void block_done();
  bool broken(std::string_view what);
  bool cut(std::string_view where);
  bool cut_by_end(std::string_view where);
  void void_calls();

  Match match_at(size_t at, std::string_view literal) const;
  Match match_closing(size_t at, std::string_view name, size_t& end) const;
  void take(size_t n);
  void emit(OutputKind kind, std::string_view text, int call = -1, std::string raw = {});
  void emit_content(std::string_view text);
  void emit_call(OutputKind kind, std::string_view text);

  ParserOptions options_;
  State state_ = State::start;
  std::string bytes_;   // end of the input that is not a whole character yet
  std::string buffer_;  // text not yet understood; stays short except for white space and tags
  std::string tail_;    // half a character at the very end
  std::string gap_;     // white space behind a block
  std::string raw_;     // of the block being read: everything consumed since it began
  std::vector<OutputEvent> events_, waiting_;

  bool line_start_ = true;  // the next content would stand at the beginning of a line
  CodeFence fence_;
  bool fenced_ = false;    // the block stands in a code fence: text, unless it ends the output
  bool poisoned_ = false;  // a block was broken after a call began: what follows may be the inside of an argument

  int calls_ = 0;               // begun so far
  int block_calls_ = 0;         // of them in this block
  std::set<std::string> keys_;  // parameters of this call
  bool string_value_ = false;
  std::string value_;  // of a parameter that is JSON
  std::string note_;
};

/// Everything an output came to.
struct ParsedOutput {
  struct Call {
    std::string name, arguments, note;
  };
  std::string reasoning, content;
  std::vector<Call> calls;          // those that stand
  std::vector<std::string> errors;  // texts of malformed and cut events
  bool cut = false;                 // the output ended inside reasoning or a block
  std::string leftover;             // text that is neither of these: cut markup, what stood behind the end token

  /// Takes the next event.
  void add(const OutputEvent& event);

 private:
  std::vector<Call> open_;
};

/// Parses a whole output.
ParsedOutput parse_output(std::string_view text, const ParserOptions& options);

}  // namespace fathom::text
