// The order of work before a prompt is written: messages merge into turns, tool results are sorted, old reasoning is
// dropped. Internal to text/; rules: DeepSeek-V4 notes, section 6.1, "Merge", "Sort", "Drop".
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"

namespace fathom::text {

/// A message after merging: user and tool messages that follow each other are one user turn of several parts.
struct Turn {
  struct Part {
    bool tool_result = false;
    std::string tool_call_id, text;
  };
  Message message;          // of a user turn: role, task and wo_eos
  std::vector<Part> parts;  // user turns only
  bool in_context = false;
  size_t source = 0;  // index of the (first) message it came from, for error messages

  bool is(std::string_view role) const { return message.role == role; }
};

/// Merges `messages` and appends them.
void append_turns(std::vector<Turn>& turns, const std::vector<Message>& messages, bool in_context);

/// Puts the tool results of each turn in the order of the calls they answer.
void sort_tool_results(std::vector<Turn>& turns);

/// Index of the last user turn or developer message, -1 when there is none.
int last_user_turn(const std::vector<Turn>& turns);

/// Before the last user turn: takes out developer messages and messages of unknown roles, and the reasoning of
/// assistant turns.
void drop_old_reasoning(std::vector<Turn>& turns);

}  // namespace fathom::text
