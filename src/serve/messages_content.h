// Messages and tools in Anthropic's form -> what the chat encoding knows.
#pragma once

#include <string>
#include <vector>

#include "serve/fields.h"
#include "text/chat.h"

namespace fathom::serve {

/// Reads `system` and `messages`. Content is text or a list of blocks: text anywhere; tool_result in user messages;
/// thinking, redacted_thinking and tool_use in assistant messages. Texts of one message are joined by two newlines,
/// neighbouring assistant messages become one. A tool result that is an error begins with "Error: ". A last message of
/// the assistant is continued. Throws ApiError naming the place.
std::vector<text::Message> read_anthropic_messages(Fields& fields, std::vector<std::string>& warnings);

/// Reads `tools` into a list of {"type": "function", "function": {"name", "description", "parameters"}}; an empty list
/// when there are none. Throws ApiError for tools that are no functions of the client.
text::JsonValue read_anthropic_tools(Fields& fields, std::vector<std::string>& warnings);

}  // namespace fathom::serve
