// Messages of a chat request as JSON -> Message. Types are checked here: the official encoder would print whatever it
// is given into the prompt.
#pragma once

#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/json.h"

namespace fathom::text {

struct MessageReading {
  /// An object in place of the text of `arguments` is taken as that text, as a server should. Off: it is kept as a
  /// value (ToolCall::arguments_are_value), as the official encoder does.
  bool argument_objects_as_text = true;
};

/// Reads a JSON list of messages. `where` names the list in errors ("messages").
/// Content may be missing, null (both empty), text, or a list of parts: texts are joined by two newlines; other parts
/// become "[Unsupported TYPE]" in a tool message and are refused elsewhere. Any other type is an Error, as are calls
/// without name or arguments. Fields that the encoding does not know (name, refusal, ...) are not looked at.
std::vector<Message> messages_from_json(std::string_view json, std::string_view where,
                                        const MessageReading& reading = {});

/// The same from a list that has been read already.
std::vector<Message> messages_from_value(const JsonValue& list, std::string_view where,
                                         const MessageReading& reading = {});

}  // namespace fathom::text
