#include "bench/stream.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/workload.h"

namespace fathom::bench {
namespace {

using Json = nlohmann::json;

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

int64_t count(const Json* object, const char* name, int64_t otherwise) {
  const Json* value = object ? member(*object, name) : nullptr;
  return value && value->is_number() ? value->get<int64_t>() : otherwise;
}

void take_usage(const Json& usage, RequestRecord& r) {
  r.prompt_tokens = count(&usage, "prompt_tokens", r.prompt_tokens);
  r.output_tokens = count(&usage, "completion_tokens", r.output_tokens);
  r.cached_tokens = count(member(usage, "prompt_tokens_details"), "cached_tokens", r.cached_tokens);
  r.reasoning_tokens = count(member(usage, "completion_tokens_details"), "reasoning_tokens", r.reasoning_tokens);
}

void append(const Json* value, std::string& out) {
  if (value && value->is_string()) out += value->get_ref<const std::string&>();
}

/// Output that a choice carries: text of any kind, or parts of a tool call.
bool take_choice(const Json& choice, std::string& text, RequestRecord& r) {
  if (const Json* finish = member(choice, "finish_reason"); finish && finish->is_string())
    r.finish = finish->get<std::string>();
  const Json* delta = member(choice, "delta");
  if (!delta) delta = member(choice, "message");
  const size_t before = text.size();
  append(member(choice, "text"), text);
  if (!delta) return text.size() > before;
  append(member(*delta, "content"), text);
  const Json* reasoning = member(*delta, "reasoning_content");
  append(reasoning ? reasoning : member(*delta, "reasoning"), text);
  const Json* calls = member(*delta, "tool_calls");
  return text.size() > before || (calls && calls->is_array() && !calls->empty());
}

/// One chunk or one whole answer. False when it is no JSON object.
bool take(std::string_view body, double now, std::string& text, RequestRecord& r) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) return false;
  if (const Json* error = member(json, "error")) {
    const Json* message = member(*error, "message");
    r.error = printable(message && message->is_string() ? message->get<std::string>()
                                                        : error->dump(-1, ' ', false, Json::error_handler_t::replace),
                        300);
    return true;
  }
  if (const Json* usage = member(json, "usage")) take_usage(*usage, r);
  const Json* choices = member(json, "choices");
  bool output = false;
  if (choices && choices->is_array())
    for (const Json& choice : *choices) output |= take_choice(choice, text, r);
  if (output) r.pieces.push_back(now);
  return true;
}

}  // namespace

void AnswerStream::feed(std::string_view bytes, double now) {
  constexpr size_t longest_line = size_t{64} << 20;
  size_t begin = 0;
  for (size_t end = bytes.find('\n'); end != bytes.npos; end = bytes.find('\n', begin)) {
    if (pending_.empty()) {
      line(bytes.substr(begin, end - begin), now);
    } else {
      pending_.append(bytes, begin, end - begin);
      line(pending_, now);
      pending_.clear();
    }
    begin = end + 1;
  }
  pending_.append(bytes, begin);
  if (pending_.size() > longest_line) record_.error = "a line of the stream has no end", pending_.clear();
}

void AnswerStream::line(std::string_view text, double now) {
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (!text.starts_with("data:")) return;  // comments, event names, empty lines
  text.remove_prefix(5);
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (text == "[DONE]") {
    done_ = true;
  } else if (!take(text, now, text_, record_) && record_.error.empty()) {
    record_.error = "a chunk of the stream is not a JSON object: " + printable(std::string(text), 100);
  }
}

void AnswerStream::finish(double now) {
  if (!pending_.empty()) line(std::exchange(pending_, {}), now);
  record_.looping = ends_in_loop(text_);
  if (record_.error.empty() && !done_ && record_.finish.empty())
    record_.error = "the stream ended before its answer did";
}

void read_answer(std::string_view body, double now, RequestRecord& record) {
  std::string text;
  if (!take(body, now, text, record))
    record.error = "the answer is not a JSON object: " + printable(std::string(body), 100);
  record.looping = ends_in_loop(text);
}

std::string error_text(int status, std::string_view body) {
  std::string text;
  RequestRecord r;
  take(body, 0, text, r);
  return fmt::format("HTTP {}: {}", status,
                     r.error.empty() ? printable(std::string(body.substr(0, 300)), 300) : r.error);
}

std::string first_model(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  const Json* data = member(json, "data");
  if (!data || !data->is_array() || data->empty()) return "";
  const Json* id = member(data->front(), "id");
  return id && id->is_string() ? id->get<std::string>() : "";
}

std::string request_body(const RequestText& r) {
  Json body = {{"model", r.model},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"max_tokens", r.max_tokens},
               {"temperature", r.temperature}};
  if (r.chat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", r.prompt}}});
  else
    body["prompt"] = r.prompt;
  if (r.ignore_end) body["ignore_eos"] = true, body["min_tokens"] = r.max_tokens;
  return body.dump();
}

}  // namespace fathom::bench
