#include "serve/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/protocol.h"

namespace fathom::serve {

EncodedPrompt encode_prompt(const ChatPrompt& prompt, const text::Tokenizer& tokenizer) {
  std::vector<text::Message> messages = prompt.messages;
  if (messages.empty()) fail("{} is empty: at least one message is needed", prompt.where);
  const text::Message& last = messages.back();
  if (last.role == "assistant" && !last.wo_eos && !last.task)
    fail(
        "{}[{}]: the last message is the assistant's: set \"prefix\": true on it to have it continued, or add a user "
        "message",
        prompt.where, messages.size() - 1);
  if (last.role == "system" && !last.task)
    fail("{}[{}]: the last message is a system message: add a user message behind it, there is nothing to answer",
         prompt.where, messages.size() - 1);
  if (!prompt.tools.empty()) {
    // Tools ride on the first system message; without one on an empty one.
    if (messages.front().role != "system") messages.insert(messages.begin(), text::Message{.role = "system"});
    if (!messages.front().tools.empty())
      fail("{}[0] has tools and the request too: give them in one place", prompt.where);
    messages.front().tools = prompt.tools;
  }
  if (!prompt.response_format.empty()) {
    if (messages.front().role != "system") messages.insert(messages.begin(), text::Message{.role = "system"});
    messages.front().response_format = prompt.response_format;
  }
  text::ChatOptions options;
  options.thinking_mode = prompt.thinking ? "thinking" : "chat";
  options.reasoning_effort = prompt.effort;
  options.drop_thinking = prompt.drop_thinking;
  const auto segments = text::encode_chat(messages, options);
  EncodedPrompt out;
  out.ids = text::prompt_ids(segments, tokenizer);
  out.thinking = !segments.empty() && segments.back().control && segments.back().text == text::protocol::kThink;
  return out;
}

void apply_thinking(const ThinkingChoice& choice, bool by_default, ChatPrompt& prompt,
                    std::vector<std::string>& warnings) {
  prompt.thinking = choice.on.value_or(choice.effort ? *choice.effort != "none" : by_default);
  if (!choice.effort) return;
  const std::string& effort = *choice.effort;
  constexpr std::string_view kKnown[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (std::find(std::begin(kKnown), std::end(kKnown), effort) == std::end(kKnown))
    throw ApiError(
        400, "invalid_request_error",
        fmt::format("reasoning_effort is {}, it must be one of {}", printable(effort), fmt::join(kKnown, ", ")),
        "reasoning_effort");
  if (!prompt.thinking) {
    if (effort != "none") warnings.push_back("reasoning_effort does nothing: thinking is off");
    return;
  }
  if (effort == "none") {
    warnings.push_back("reasoning_effort none does nothing: thinking was asked for");
  } else if (effort == "minimal" || effort == "medium") {
    warnings.push_back(fmt::format("reasoning_effort {} is taken as low: the model knows low, high and max", effort));
    prompt.effort = "low";
  } else {
    prompt.effort = effort == "xhigh" ? "max" : effort;
  }
}

int64_t fitting_tokens(size_t prompt_tokens, const std::optional<int64_t>& max_tokens, Api& api,
                       std::vector<std::string>& warnings) {
  const int64_t context = api.service().limits().max_context, prompt = static_cast<int64_t>(prompt_tokens);
  if (prompt >= context)
    throw ApiError(400, "invalid_request_error",
                   fmt::format("the prompt has {} tokens, the context holds {}: shorten it", prompt, context),
                   "messages", "context_length_exceeded");
  const int64_t room = context - prompt, usual = api.model().default_max_tokens;
  const int64_t wanted = max_tokens.value_or(usual > 0 ? usual : room);
  if (max_tokens && wanted > room)
    warnings.push_back(fmt::format("max_tokens {} is more than the context of {} leaves behind the prompt: {} is used",
                                   wanted, context, room));
  return std::max<int64_t>(1, std::min(wanted, room));
}

void set_prompt(EncodedPrompt encoded, const std::optional<int64_t>& budget, const std::optional<int64_t>& max_tokens,
                Api& api, TextRequest& request, std::vector<std::string>& warnings) {
  request.max_tokens = fitting_tokens(encoded.ids.size(), max_tokens, api, warnings);
  request.text.chat = true;
  request.text.thinking = encoded.thinking;
  if (budget && encoded.thinking)
    request.thinking = {*budget, api.model().tokenizer->added_id(text::protocol::kThinkEnd).value_or(-1)};
  else if (budget)
    warnings.push_back("the thinking budget does nothing: thinking is off");
  request.prompts.push_back(std::move(encoded.ids));
}

}  // namespace fathom::serve
