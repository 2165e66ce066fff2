// The DeepSeek-V4 chat encoding: messages to the prompt that the model was trained on, byte for byte.
//
// The prompt comes as segments: control tokens, which the encoding itself writes, and text. Text from a client stays
// text, so a message that spells out <｜Assistant｜> or <think> cannot open a turn. Rules: DeepSeek-V4 notes,
// sections 6 and 6.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace fathom::text {

struct ToolCall {
  std::string id;
  std::string name;
  /// JSON text of an object, as the model or a client wrote it. Text that is not valid JSON is passed on whole, as one
  /// parameter called "arguments"; valid JSON that is not an object is refused.
  std::string arguments;
  /// True when `arguments` is the JSON of a value that stood in place of the text. It then goes out as one parameter
  /// called "arguments"; a server should rather put the text of the object here and leave this false.
  bool arguments_are_value = false;
};

struct Message {
  /// system, user, assistant, tool, developer or latest_reminder.
  std::string role;
  std::string content;
  std::string reasoning_content;     // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool: the call that it answers
  std::string tools;                 // JSON list of {"type", "function"}; empty, null and [] mean none
  std::string response_format;       // JSON value, written whole; empty and null mean none
  std::optional<std::string> task;   // action, query, authority, domain, title or read_url
  bool wo_eos = false;               // assistant: no end token, so that the model goes on with this message
};

/// The encoders differ in their reasoning efforts. preview: none, "high" (nothing) and "max"; r0731: none or "low"
/// (nothing), "high" and "max".
enum class Revision { preview, r0731 };

struct ChatOptions {
  std::string thinking_mode = "chat";  // or "thinking"
  bool drop_thinking = true;           // leave out reasoning before the last user turn; off when there are tools
  std::optional<std::string> reasoning_effort;
  Revision revision = Revision::r0731;
  bool begin_token = true;
  /// Messages encoded before. They are looked at (order of tool results, tasks, tools) but not written again, and
  /// neither are begin token and effort text.
  std::vector<Message> context;
};

struct Segment {
  bool control = false;  // `text` is the spelling of one added token
  std::string text;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// The prompt for `messages`. Neighbouring segments of text are one segment. Throws Error, naming the message, for:
/// an unknown role, mode, effort or task; an empty developer message; a call without a name; arguments that are no
/// object; tools or response formats that are not JSON; text that is not UTF-8.
std::vector<Segment> encode_chat(const std::vector<Message>& messages, const ChatOptions& options);

/// The segments as one string: what the official encoder returns.
std::string prompt_text(const std::vector<Segment>& segments);

/// The segments as ids. Control segments become their token (Error when `tokenizer` has none), text is encoded with
/// added tokens taken as text.
std::vector<int32_t> prompt_ids(const std::vector<Segment>& segments, const Tokenizer& tokenizer);

}  // namespace fathom::text
