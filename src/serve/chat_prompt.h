// From the messages of a chat API to the ids of its prompt. Shared by all APIs that speak in messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api.h"
#include "text/chat.h"

namespace fathom::serve {

struct ChatPrompt {
  std::vector<text::Message> messages;
  std::string tools;            // JSON list of {"type": "function", "function": {...}}; empty: none
  std::string response_format;  // JSON, written into the prompt; empty: none
  bool thinking = false;
  std::optional<std::string> effort;  // low, high or max
  bool drop_thinking = true;
  std::string where = "messages";  // name of the list in errors
};

struct EncodedPrompt {
  std::vector<int32_t> ids;
  bool thinking = false;  // it ends with <think>
};

/// Throws Error for messages that the encoding refuses, and for a last message that leaves nothing to answer.
EncodedPrompt encode_prompt(const ChatPrompt& prompt, const text::Tokenizer& tokenizer);

/// What a request says about thinking, by any of its fields.
struct ThinkingChoice {
  std::optional<bool> on;
  std::optional<std::string> effort;  // as the client spelled it
  std::optional<int64_t> budget;      // tokens
};

/// Puts the choice into `prompt`: on or off (`by_default` where nothing is said; an effort alone switches it on), the
/// effort by the name the encoding knows (none: off; minimal and medium: low; xhigh: max). Adds to `warnings` what
/// changed on the way. Throws ApiError for an effort that does not exist.
void apply_thinking(const ThinkingChoice& choice, bool by_default, ChatPrompt& prompt,
                    std::vector<std::string>& warnings);

/// Sets prompt, thinking and its limit. Checks that the prompt fits and lowers max_tokens to what the context leaves,
/// with a warning when the client named it. Throws ApiError (context_length_exceeded).
void set_prompt(EncodedPrompt encoded, const std::optional<int64_t>& budget, const std::optional<int64_t>& max_tokens,
                Api& api, TextRequest& request, std::vector<std::string>& warnings);

/// The same check for one prompt of any kind: max_tokens for it, at least 1.
int64_t fitting_tokens(size_t prompt_tokens, const std::optional<int64_t>& max_tokens, Api& api,
                       std::vector<std::string>& warnings);

}  // namespace fathom::serve
