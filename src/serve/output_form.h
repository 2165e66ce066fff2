// What a request says about the form of its output: response_format and tool_choice, as grammars.
#pragma once

#include <optional>
#include <string>

#include "serve/chat_prompt.h"
#include "serve/fields.h"
#include "text/constrain/grammar.h"

namespace fathom::serve {

struct OutputForm {
  bool no_calls = false;                 // tool_choice none: calls are forbidden
  std::optional<text::Grammar> grammar;  // of everything behind the thinking; absent: free
  std::string response_format;           // for the prompt, JSON; empty: none
};

/// Reads response_format and tool_choice of the chat API. `tools` is its list of tools (null: none), `one_call` says
/// that at most one call may come. Throws ApiError for forms that do not exist or cannot be enforced, naming the place
/// in the schema.
OutputForm read_output_form(Fields& fields, const text::JsonValue* tools, bool one_call);

/// The same for APIs that have their own spelling: the output must call one of `functions` (schema of parameters or
/// null).
text::Grammar calls_of(Fields& fields, const text::JsonValue& tools, const std::optional<std::string>& name,
                       bool one_call);

/// And for their schemas: the output must be JSON of `schema`. `field` names it in errors.
void require_schema(Fields& fields, const char* field, const text::JsonValue& schema, OutputForm& form);
/// The output must be some JSON object.
void require_object(OutputForm& form);

/// Puts the form into the request. `thinking`: the prompt ends with an open thinking, which stays free. Where
/// calls are forbidden, the token that begins one cannot be drawn. Throws ApiError for a form that contradicts
/// ignore_eos.
void set_form(const OutputForm& form, bool thinking, const ApiModel& model, TextRequest& request);

/// The end of reading a request of a chat API: tokenises the prompt and puts it, the form of the output and the lengths
/// into `request`. Throws Error as encode_prompt(), set_form() and set_prompt() do.
void set_chat(const ChatPrompt& prompt, const OutputForm& form, const ThinkingChoice& thinking,
              const std::optional<int64_t>& max_tokens, Api& api, TextRequest& request,
              std::vector<std::string>& warnings);

}  // namespace fathom::serve
