// The items of a response's input -> messages of the chat encoding.
#pragma once

#include <string>
#include <vector>

#include "serve/fields.h"
#include "text/chat.h"

namespace fathom::serve {

/// Reads `instructions` and `input` (text or a list of items: messages, function_call, function_call_output,
/// reasoning). Neighbouring items of the assistant become one message, neighbouring system and developer messages one
/// system message; texts are joined by two newlines. Throws ApiError naming the place, for items that refer to what a
/// server would have stored too.
std::vector<text::Message> read_response_input(Fields& fields, std::vector<std::string>& warnings);

/// Reads `tools` into a list of {"type": "function", "function": {...}}; an empty list when there are none.
text::JsonValue read_response_tools(Fields& fields, std::vector<std::string>& warnings);

}  // namespace fathom::serve
