// Follows Markdown text and knows whether it is inside a fenced code block.
#pragma once

#include <string_view>

namespace fathom::text {

/// Rules of CommonMark 0.30 section 4.5, without containers: a fence is a line of at most three spaces and at least
/// three backticks or tildes; it is closed by a line of as many of the same and nothing else.
class CodeFence {
 public:
  void push(std::string_view text) {
    for (const char c : text) push(c);
  }
  /// As if the present line ended here.
  bool inside() const {
    CodeFence copy = *this;
    copy.push('\n');
    return copy.mark_ != 0;
  }

 private:
  void push(char c) {
    if (c == '\n') {
      end_line();
    } else if (run_open_ && run_ == 0 && c == ' ') {
      if (++indent_ > 3) run_open_ = false;
    } else if (run_open_ && (run_ == 0 ? c == '`' || c == '~' : c == run_mark_)) {
      run_mark_ = c;
      ++run_;
    } else if (c != '\r') {
      run_open_ = false;
      if (c != ' ' && c != '\t') blank_ = false;
      if (c == '`') backtick_ = true;
    }
  }
  void end_line() {
    if (run_ >= 3) {
      if (mark_ == 0) {
        if (!(run_mark_ == '`' && backtick_)) mark_ = run_mark_, length_ = run_;
      } else if (mark_ == run_mark_ && run_ >= length_ && blank_) {
        mark_ = 0;
      }
    }
    indent_ = run_ = 0;
    run_mark_ = 0;
    run_open_ = blank_ = true;
    backtick_ = false;
  }

  char mark_ = 0;  // of the open fence; 0: outside
  int length_ = 0;
  // The present line: its indentation, its first run of marks, and what stands behind that run.
  int indent_ = 0, run_ = 0;
  char run_mark_ = 0;
  bool run_open_ = true, blank_ = true, backtick_ = false;
};

}  // namespace fathom::text
