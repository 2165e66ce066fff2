#include "text/chat_history.h"

#include <algorithm>
#include <unordered_map>

namespace fathom::text {
namespace {

/// Roles that dropping leaves in place. The official encoder names the last one here and cannot write it: it stays, and
/// is refused later.
constexpr std::string_view kKept[] = {"user", "system", "latest_reminder", "direct_search_results"};

}  // namespace

void append_turns(std::vector<Turn>& turns, const std::vector<Message>& messages, bool in_context) {
  const size_t border = turns.size();  // nothing merges into what stands before
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const bool tool = m.role == "tool";
    if (!tool && m.role != "user") {
      turns.push_back({.message = m, .in_context = in_context, .source = i});
      continue;
    }
    const bool joins =
        turns.size() > border && turns.back().is("user") && (tool || !turns.back().message.task.has_value());
    if (!joins) {
      Turn turn{.in_context = in_context, .source = i};
      turn.message.role = "user";
      if (!tool) turn.message.task = m.task, turn.message.wo_eos = m.wo_eos;
      turns.push_back(std::move(turn));
    }
    turns.back().parts.push_back({tool, m.tool_call_id, m.content});
  }
}

void sort_tool_results(std::vector<Turn>& turns) {
  std::unordered_map<std::string, size_t> order;
  for (Turn& turn : turns) {
    if (turn.is("assistant") && !turn.message.tool_calls.empty()) {
      order.clear();
      for (size_t i = 0; i < turn.message.tool_calls.size(); ++i)
        if (const std::string& id = turn.message.tool_calls[i].id; !id.empty()) order[id] = i;
    }
    if (order.empty() || !turn.is("user")) continue;
    std::vector<size_t> slots;
    std::vector<Turn::Part> results;
    for (size_t i = 0; i < turn.parts.size(); ++i)
      if (turn.parts[i].tool_result) slots.push_back(i), results.push_back(turn.parts[i]);
    const auto rank = [&](const Turn::Part& part) {
      const auto it = order.find(part.tool_call_id);
      return it == order.end() ? 0 : it->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const Turn::Part& a, const Turn::Part& b) { return rank(a) < rank(b); });
    for (size_t i = 0; i < slots.size(); ++i) turn.parts[slots[i]] = std::move(results[i]);
  }
}

int last_user_turn(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i-- > 0;)
    if (turns[i].is("user") || turns[i].is("developer")) return static_cast<int>(i);
  return -1;
}

void drop_old_reasoning(std::vector<Turn>& turns) {
  const int last = last_user_turn(turns);
  std::vector<Turn> kept;
  for (size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    if (static_cast<int>(i) < last) {
      if (turn.is("assistant")) {
        turn.message.reasoning_content.clear();
      } else if (std::find(std::begin(kKept), std::end(kKept), turn.message.role) == std::end(kKept)) {
        continue;
      }
    }
    kept.push_back(std::move(turn));
  }
  turns = std::move(kept);
}

}  // namespace fathom::text
