#include "serve/openai_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/utf8.h"
#include "text/json.h"

namespace fathom::serve {

namespace {

/// OpenAI's fields, and what else there is to know of drafts. Empty when none were verified.
std::string draft_details(const Usage& u) {
  const DraftUse& d = u.drafts;
  if (d.offered == 0) return {};
  const auto used = std::find(d.offered_at.begin(), d.offered_at.end(), 0);  // no place behind it
  const auto places = used - d.offered_at.begin();
  const auto steps = static_cast<double>(d.steps);
  std::string out =
      fmt::format(R"(,"accepted_prediction_tokens":{},"rejected_prediction_tokens":{},"verified_by_position":[{}],)"
                  R"("accepted_by_position":[{}],"steps":{},"tokens_per_step":{:.3f})",
                  d.accepted, d.offered - d.accepted, fmt::join(d.offered_at.begin(), used, ","),
                  fmt::join(d.accepted_at.begin(), d.accepted_at.begin() + places, ","), d.steps,
                  static_cast<double>(u.completion_tokens) / std::max(1.0, steps));
  if (u.seconds > 0) out += fmt::format(R"(,"steps_per_second":{:.2f})", (steps - 1) / u.seconds);
  return out;
}

}  // namespace

std::string usage_json(const Usage& u) {
  const std::string drafts = draft_details(u);
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}},)"
      R"("completion_tokens_details":{{"reasoning_tokens":{}{}}},"prompt_cache_hit_tokens":{},"prompt_cache_miss_tokens":{}}})",
      u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens, u.cached_tokens, u.reasoning_tokens,
      drafts, u.cached_tokens, u.prompt_tokens - u.cached_tokens);
}

double json_logprob(float logprob) {
  return std::isfinite(logprob) ? std::max(static_cast<double>(logprob), -9999.0) : -9999.0;
}

std::string token_text(const text::Tokenizer& tokenizer, int32_t token) {
  return tokenizer.has(token) ? utf8_repaired(tokenizer.bytes(token)) : "\xEF\xBF\xBD";
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  text::append_json_escaped(out, text);
  out += '"';
}

namespace {

void append_entry(std::string& out, const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  out += R"({"token":)";
  append_quoted(out, token_text(tokenizer, token));
  fmt::format_to(std::back_inserter(out), R"(,"logprob":{:.6g},"bytes":[)", json_logprob(logprob));
  const std::string_view bytes = tokenizer.has(token) ? tokenizer.bytes(token) : std::string_view("\xEF\xBF\xBD");
  for (size_t i = 0; i < bytes.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i ? "," : "", static_cast<unsigned char>(bytes[i]));
  out += ']';
}

}  // namespace

void append_logprob(std::string& out, const text::Tokenizer& tokenizer, const SampledToken& token) {
  append_entry(out, tokenizer, token.token, token.logprob);
  out += R"(,"top_logprobs":[)";
  for (size_t i = 0; i < token.top.size(); ++i) {
    if (i) out += ',';
    append_entry(out, tokenizer, token.top[i].token, token.top[i].logprob);
    out += '}';
  }
  out += "]}";
}

}  // namespace fathom::serve
