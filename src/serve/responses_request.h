// /v1/responses (OpenAI's second API): from the JSON of the request to what is generated. Nothing is stored: every
// request brings its whole conversation.
#pragma once

#include <string>

#include "serve/api.h"
#include "serve/sampling_fields.h"

namespace fathom::serve {

struct ResponsesCall {
  TextRequest request;
  CommonFields common;
  std::string echo;  // members of the response object that repeat the request: "tools":[...],...
};

/// Reads and tokenises. Runs on the worker. Throws Error for anything that is wrong or not supported.
ResponsesCall read_responses_call(const HttpRequest& http, Api& api, uint64_t random);

}  // namespace fathom::serve
