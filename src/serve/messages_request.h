// /v1/messages (Anthropic's API): from the JSON of the request to what is generated.
#pragma once

#include "serve/api.h"
#include "serve/sampling_fields.h"

namespace fathom::serve {

struct MessagesCall {
  TextRequest request;
  CommonFields common;
  bool context_limited = false;  // max_tokens had to be lowered to what the context leaves
};

/// Reads and tokenises. Runs on the worker. Throws Error for anything that is wrong or not supported.
MessagesCall read_messages_call(const HttpRequest& http, Api& api, uint64_t random);

/// Tokens of the prompt, for /v1/messages/count_tokens: the same fields, no generation.
int64_t count_messages_tokens(const HttpRequest& http, Api& api, std::vector<std::string>& warnings);

}  // namespace fathom::serve
