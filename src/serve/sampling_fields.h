// The request fields that /v1/chat/completions and /v1/completions share: sampling, lengths, stopping.
#pragma once

#include "serve/fields.h"

namespace fathom::serve {

/// What a request says besides its text.
struct CommonFields {
  std::string model;  // as the client named it
  bool stream = false;
  bool include_usage = false;  // stream_options: usage in a chunk of its own
  std::vector<std::string> warnings;
};

/// Reads model, stream, stream_options, n, seed, temperature, top_p, top_k, min_p, the penalties, logit_bias,
/// min_tokens, ignore_eos, cache_salt, stop, stop_token_ids, include_stop_str_in_output, stop_in_reasoning, timeout,
/// user, and what changes nothing (metadata...). `random` is the seed where the request has none. Throws ApiError.
CommonFields read_common(Fields& fields, const ApiModel& model, uint64_t random, TextRequest& request);

/// A request for an output of any API: its body, its fields, and what is read first of them.
struct OutputRequest {
  OutputRequest(const HttpRequest& http, const ApiModel& model, uint64_t random, TextRequest& request)
      : body(read_body(http)), fields(body), common(read_common(fields, model, random, request)) {}
  OutputRequest(const OutputRequest&) = delete;
  text::JsonValue body;
  Fields fields;
  CommonFields common;
};

/// The header that names what was accepted but does nothing; nothing when there is nothing to say.
void add_warnings(Exchange& exchange, const std::vector<std::string>& warnings);

/// "unknown fields: a, b" behind `warnings`, if `fields` has any.
void warn_of_unknown(const Fields& fields, std::vector<std::string>& warnings);

}  // namespace fathom::serve
