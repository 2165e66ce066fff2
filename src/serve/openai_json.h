// Pieces of OpenAI's JSON that several answers need.
#pragma once

#include <string>
#include <string_view>

#include "serve/generation.h"
#include "text/tokenizer.h"

namespace fathom::serve {

/// {"prompt_tokens": ..., "completion_tokens": ..., ...} with OpenAI's details and DeepSeek's cache counts.
std::string usage_json(const Usage& usage);

/// One entry of a chat's logprobs.content: token, logprob, bytes, top_logprobs.
void append_logprob(std::string& out, const text::Tokenizer& tokenizer, const SampledToken& token);

/// A log probability that JSON can hold: minus infinity becomes -9999.
double json_logprob(float logprob);

/// The token's text; bytes that are no UTF-8 alone become U+FFFD, an id without a token too.
std::string token_text(const text::Tokenizer& tokenizer, int32_t token);

/// Appends `text` as a JSON string with quotes.
void append_quoted(std::string& out, std::string_view text);

}  // namespace fathom::serve
