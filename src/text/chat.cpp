#include "text/chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chat_history.h"
#include "text/json.h"
#include "text/protocol.h"

namespace fathom::text {
namespace {

using namespace protocol;

/// Collects segments; neighbouring text becomes one segment.
class Prompt {
 public:
  void control(std::string_view token) { segments_.push_back({true, std::string(token)}); }
  void text(std::string_view s) {
    if (s.empty()) return;
    if (segments_.empty() || segments_.back().control) segments_.push_back({});
    segments_.back().text += s;
  }
  /// A fixed text of the protocol: the tokens spelled in it are control tokens.
  void fixed(std::string_view s) {
    while (!s.empty()) {
      size_t at = s.size();
      std::string_view token;
      for (const std::string_view t : {kDsml, kThink, kThinkEnd})
        if (const size_t found = s.find(t); found < at) at = found, token = t;
      text(s.substr(0, at));
      if (!token.empty()) control(token);
      s.remove_prefix(at + token.size());
    }
  }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

std::string where(const Turn& turn) {
  return fmt::format("{}[{}]", turn.in_context ? "context" : "messages", turn.source);
}

JsonValue read_field(const std::string& json, const Turn& turn, std::string_view field) {
  JsonReading reading = read_json(json);
  if (!reading.value) fail("{}: {} is not valid JSON: {}", where(turn), field, reading.error);
  if (reading.lone_surrogate) fail("{}: {} holds half a surrogate pair", where(turn), field);
  return std::move(*reading.value);
}

/// The tools as a JSON list; empty when there are none.
std::vector<JsonValue> tools_of(const Turn& turn) {
  if (turn.message.tools.empty()) return {};
  JsonValue list = read_field(turn.message.tools, turn, "tools");
  if (list.is(JsonValue::Kind::null)) return {};
  if (!list.is(JsonValue::Kind::array)) fail("{}: tools is not a list", where(turn));
  return std::move(list.items);
}

void check_utf8(const std::vector<Message>& messages, std::string_view list) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const auto check = [&](const std::string& text, std::string_view field) {
      if (!is_valid_utf8(text)) fail("{}[{}]: {} is not UTF-8", list, i, field);
    };
    check(m.content, "content");
    check(m.reasoning_content, "reasoning_content");
    for (const ToolCall& call : m.tool_calls) {
      check(call.name, "the name of a tool call");
      check(call.arguments, "the arguments of a tool call");
    }
  }
}

/// Writes the turns of one conversation.
class Renderer {
 public:
  Renderer(const ChatOptions& options, std::vector<Turn> turns) : options_(options), turns_(std::move(turns)) {
    thinking_ = options.thinking_mode == "thinking";
    drop_ = options.drop_thinking;
    for (const Turn& turn : turns_)
      if (!turn.is("user") && !tools_of(turn).empty()) drop_ = false;
    if (thinking_ && drop_) drop_old_reasoning(turns_);
    last_ = last_user_turn(turns_);
  }

  std::vector<Segment> run() {
    if (options_.begin_token && options_.context.empty()) out_.control(kBegin);
    for (size_t i = 0; i < turns_.size(); ++i)
      if (!turns_[i].in_context) turn(i);
    return out_.take();
  }

 private:
  void turn(size_t i) {
    const Turn& t = turns_[i];
    check_options();
    if (i == 0 && thinking_ && options_.context.empty()) out_.text(effort_text());
    const Message& m = t.message;
    if (t.is("system")) {
      out_.text(m.content);
      tools_and_format(t);
    } else if (t.is("developer")) {
      if (m.content.empty()) fail("{}: a developer message is empty", where(t));
      out_.control(kUser);
      out_.text(m.content);
      tools_and_format(t);
    } else if (t.is("user")) {
      user(t);
    } else if (t.is("latest_reminder")) {
      out_.control(kReminder);
      out_.text(m.content);
    } else if (t.is("assistant")) {
      assistant(i);
    } else {
      fail("{}: role \"{}\" is not known; use system, user, assistant, tool, developer or latest_reminder", where(t),
           printable(m.role));
    }
    tail(i);
  }

  void check_options() const {
    if (options_.thinking_mode != "chat" && options_.thinking_mode != "thinking")
      fail("thinking mode \"{}\" is not known; use chat or thinking", printable(options_.thinking_mode));
    effort_text();
  }

  std::string_view effort_text() const {
    if (!options_.reasoning_effort) return "";
    const std::string& effort = *options_.reasoning_effort;
    if (options_.revision == Revision::preview) {
      if (effort == "high") return "";
      if (effort == "max") return kEffortAbsolute;
      fail("reasoning effort \"{}\" is not known; use high or max", printable(effort));
    }
    if (effort.empty() || effort == "low") return "";
    if (effort == "high") return kEffortAbsolute;
    if (effort == "max") return kEffortBeyond;
    fail("reasoning effort \"{}\" is not known; use low, high or max", printable(effort));
  }

  void tools_and_format(const Turn& t) {
    if (const std::vector<JsonValue> tools = tools_of(t); !tools.empty()) {
      out_.text("\n\n");
      out_.fixed(kToolsBefore);
      for (size_t i = 0; i < tools.size(); ++i) {
        const JsonValue* function = tools[i].find("function");
        if (!function) fail("{}: tools[{}] has no \"function\"", where(t), i);
        if (i > 0) out_.text("\n");
        out_.text(write_json(*function));
      }
      out_.fixed(kToolsAfter);
    }
    if (t.message.response_format.empty()) return;
    const JsonValue format = read_field(t.message.response_format, t, "response_format");
    if (!format.truthy()) return;
    out_.text("\n\n");
    out_.fixed(kResponseFormat);
    out_.text(write_json(format));
  }

  void user(const Turn& t) {
    out_.control(kUser);
    for (size_t i = 0; i < t.parts.size(); ++i) {
      if (i > 0) out_.text("\n\n");
      if (t.parts[i].tool_result) out_.text(kToolResult);
      out_.text(t.parts[i].text);
      if (t.parts[i].tool_result) out_.text(kToolResultEnd);
    }
  }

  void assistant(size_t i) {
    const Turn& t = turns_[i];
    const bool after_task = i > 0 && turns_[i - 1].message.task.has_value();
    if (thinking_ && !after_task && (!drop_ || static_cast<int>(i) > last_)) {
      out_.text(t.message.reasoning_content);
      out_.control(kThinkEnd);
    }
    out_.text(t.message.content);
    if (!t.message.tool_calls.empty()) tool_calls(t);
    if (!t.message.wo_eos) out_.control(kEnd);
  }

  void tool_calls(const Turn& t) {
    tag("\n\n<", "tool_calls>\n");
    for (size_t i = 0; i < t.message.tool_calls.size(); ++i) {
      const ToolCall& call = t.message.tool_calls[i];
      if (call.name.empty()) fail("{}: tool_calls[{}] has no name", where(t), i);
      tag(i > 0 ? "\n<" : "<", "invoke name=\"");
      out_.text(call.name);
      out_.text("\">\n");
      parameters(call, fmt::format("{}: tool_calls[{}]", where(t), i));
      tag("\n</", "invoke>");
    }
    tag("\n</", "tool_calls>");
  }

  void parameters(const ToolCall& call, const std::string& place) {
    const JsonReading reading = read_json(call.arguments);
    if (reading.lone_surrogate) fail("{}: arguments hold half a surrogate pair", place);
    if (call.arguments_are_value) {
      if (!reading.value) fail("{}: arguments are not valid JSON: {}", place, reading.error);
      parameter("arguments", false, write_json(*reading.value));
    } else if (!reading.value) {
      parameter("arguments", true, call.arguments);
    } else if (!reading.value->is(JsonValue::Kind::object)) {
      fail("{}: arguments are valid JSON but not an object", place);
    } else {
      bool first = true;
      for (const auto& [name, value] : reading.value->members) {
        if (!first) out_.text("\n");
        first = false;
        const bool string = value.is(JsonValue::Kind::string);
        parameter(name, string, string ? value.text : write_json(value));
      }
    }
  }

  void parameter(std::string_view name, bool string, std::string_view value) {
    tag("<", "parameter name=\"");
    out_.text(name);
    out_.text(string ? "\" string=\"true\">" : "\" string=\"false\">");
    out_.text(value);
    tag("</", "parameter>");
  }

  void tag(std::string_view before, std::string_view behind) {
    out_.text(before);
    out_.control(kDsml);
    out_.text(behind);
  }

  /// What stands behind a turn: a task token, or the header that lets the model speak.
  void tail(size_t i) {
    if (i + 1 < turns_.size() && !turns_[i + 1].is("assistant") && !turns_[i + 1].is("latest_reminder")) return;
    const Turn& t = turns_[i];
    if (t.message.task) {
      const auto task = std::find_if(std::begin(kTasks), std::end(kTasks),
                                     [&](const Task& known) { return known.name == *t.message.task; });
      if (task == std::end(kTasks)) fail("{}: task \"{}\" is not known", where(t), printable(*t.message.task));
      if (task->name == "action") header(thinking_);
      out_.control(task->token);
    } else if (t.is("user") || t.is("developer")) {
      header(thinking_ && (!drop_ || static_cast<int>(i) >= last_));
    }
  }

  void header(bool think) {
    out_.control(kAssistant);
    out_.control(think ? kThink : kThinkEnd);
  }

  const ChatOptions& options_;
  std::vector<Turn> turns_;
  bool thinking_ = false, drop_ = false;
  int last_ = -1;
  Prompt out_;
};

}  // namespace

std::vector<Segment> encode_chat(const std::vector<Message>& messages, const ChatOptions& options) {
  check_utf8(options.context, "context");
  check_utf8(messages, "messages");
  std::vector<Turn> turns;
  append_turns(turns, options.context, true);
  append_turns(turns, messages, false);
  sort_tool_results(turns);
  return Renderer(options, std::move(turns)).run();
}

std::string prompt_text(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& s : segments) out += s.text;
  return out;
}

std::vector<int32_t> prompt_ids(const std::vector<Segment>& segments, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const Segment& s : segments) {
    if (!s.control) {
      tokenizer.encode(s.text, AddedTokens::as_text, ids);
    } else if (const auto id = tokenizer.added_id(s.text)) {
      ids.push_back(*id);
    } else {
      fail("the tokenizer has no token {}, which this prompt needs", printable(s.text));
    }
  }
  return ids;
}

}  // namespace fathom::text
