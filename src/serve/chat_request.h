// /v1/chat/completions: from the JSON of the request to what is generated and how it is answered.
#pragma once

#include "serve/api.h"
#include "serve/sampling_fields.h"

namespace fathom::serve {

struct ChatCall {
  TextRequest request;
  CommonFields common;
  bool logprobs = false;
};

/// Reads and tokenises. Runs on the worker. Throws Error for anything that is wrong or not supported.
ChatCall read_chat(const HttpRequest& http, Api& api, uint64_t random);

/// The prompt alone, for /tokenize: the same fields, no generation.
std::vector<int32_t> chat_prompt_ids(const HttpRequest& http, Api& api, std::vector<std::string>& warnings);

}  // namespace fathom::serve
