// The grammar of tool calls: output that must call one of some functions (tool_choice "required" or a named one).
// Markup: DeepSeek-V4 notes, section 6.1.
#pragma once

#include <span>
#include <string>

#include "text/constrain/grammar.h"
#include "text/json.h"

namespace fathom::text {

struct ToolFunction {
  std::string name;
  const JsonValue* parameters = nullptr;  // its schema; null: no parameters
};

/// A block of one call (`several` false) or of one to 64 calls of these functions, parameters in the order of their
/// schema. Texts are written raw, other values as JSON. Throws Error naming function and place for what no grammar can
/// be made of.
Grammar tool_call_grammar(std::span<const ToolFunction> functions, bool several);

}  // namespace fathom::text
