#include "serve/responses_request.h"

#include <fmt/format.h>

#include <iterator>

#include "serve/chat_prompt.h"
#include "serve/fields.h"
#include "serve/openai_json.h"
#include "serve/output_form.h"
#include "serve/responses_input.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

/// What would need state, or abilities that are not here.
void refuse_what_is_missing(Fields& fields, std::vector<std::string>& warnings) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"})
    if (const JsonValue* value = fields.find(name); value && value->truthy())
      fields.refuse(name, "is not supported: this server stores nothing, send the whole conversation as input");
  for (const char* name : {"background", "moderation", "top_logprobs"})
    if (const JsonValue* value = fields.find(name); value && value->truthy()) fields.refuse(name, "is not supported");
  if (fields.boolean("store").value_or(false)) warnings.push_back("store does nothing: responses are not stored");
  if (const auto truncation = fields.text("truncation"); truncation && *truncation != "disabled")
    warnings.push_back("truncation does nothing: an input that does not fit is refused");
  if (fields.integer("max_tool_calls", 0, INT32_MAX)) warnings.push_back("max_tool_calls does nothing");
  for (const std::string& what : fields.texts("include", 64)) {
    if (what == "reasoning.encrypted_content")
      warnings.push_back("reasoning is not encrypted: it comes as text, and is read as text");
    else if (what == "message.output_text.logprobs")
      fields.refuse("include", "of message.output_text.logprobs is not supported");
    else
      warnings.push_back(fmt::format("include of {} does nothing", printable(what, 60)));
  }
}

ThinkingChoice read_reasoning(Fields& fields, std::vector<std::string>& warnings) {
  ThinkingChoice out;
  if (const JsonValue* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    out.effort = inner.text("effort");
    for (const char* name : {"summary", "generate_summary"})
      if (inner.text(name)) warnings.push_back("reasoning is not summarised: it comes as it is");
    warn_of_unknown(inner, warnings);
  }
  for (const char* name : {"thinking_budget", "thinking_token_budget"})
    if (const auto budget = fields.integer(name, 0, INT32_MAX)) out.budget = budget;
  return out;
}

/// text.format and text.verbosity.
void read_text(Fields& fields, OutputForm& form, std::vector<std::string>& warnings) {
  const JsonValue* text = fields.object("text");
  if (!text) return;
  Fields inner(*text, "text.");
  if (const auto verbosity = inner.text("verbosity"); verbosity && *verbosity != "medium")
    warnings.push_back("text.verbosity does nothing");
  if (const JsonValue* format = inner.object("format")) {
    Fields in_format(*format, "text.format.");
    const std::string type = in_format.text("type").value_or("");
    if (type == "json_schema") {
      const JsonValue* schema = in_format.find("schema");
      if (!schema) in_format.refuse("schema", "is missing");
      require_schema(in_format, "schema", *schema, form);
      in_format.ignore({"name", "description", "strict"});
    } else if (type == "json_object") {
      require_object(form);
    } else if (type != "text") {
      in_format.refuse("type", R"(must be "text", "json_object" or "json_schema")");
    }
    warn_of_unknown(in_format, warnings);
  }
  warn_of_unknown(inner, warnings);
}

void read_tool_choice(Fields& fields, const JsonValue& tools, bool one_call, OutputForm& form) {
  const JsonValue* choice = fields.find("tool_choice");
  const auto is = [&](const char* text) { return choice && choice->is(Kind::string) && choice->text == text; };
  std::optional<std::string> name;
  if (choice && choice->is(Kind::object)) {
    Fields inner(*choice, "tool_choice.");
    if (const auto type = inner.text("type").value_or(""); type != "function")
      inner.refuse("type", fmt::format("is {}: only \"function\" is supported", printable(type)));
    name = inner.text("name");
    if (!name) inner.refuse("name", "is missing");
  } else if (choice && !is("none") && !is("auto") && !is("required")) {
    fields.refuse("tool_choice", R"(must be "none", "auto", "required" or a function)");
  }
  form.no_calls = is("none");
  const bool forced = name || is("required");
  if (forced && tools.items.empty()) fields.refuse("tool_choice", "asks for a call, but there are no tools");
  if (form.grammar && !tools.items.empty() && !form.no_calls)
    fields.refuse("text.format", "cannot stand beside tools that may be called: set tool_choice to \"none\"");
  if (forced) form.grammar = calls_of(fields, tools, name, one_call || name.has_value());
}

/// A member of the request as it came, for the response; `otherwise` where it is missing.
std::string echoed(Fields& fields, const char* name, std::string_view otherwise) {
  const JsonValue* value = fields.find(name);
  if (!value) return std::string(otherwise);
  std::string json = text::write_json(*value);
  if (!text::is_strict_json(json)) fields.refuse(name, "holds NaN or Infinity, or is nested too deeply");
  return json;
}

std::string echo_of(Fields& fields, const TextRequest& request, const ChatPrompt& prompt) {
  std::string out;
  const auto add = [&](const char* name, std::string_view json) {
    fmt::format_to(std::back_inserter(out), R"({}"{}":{})", out.empty() ? "" : ",", name, json);
  };
  add("instructions", echoed(fields, "instructions", "null"));
  add("max_output_tokens", echoed(fields, "max_output_tokens", "null"));
  add("metadata", echoed(fields, "metadata", "{}"));
  add("parallel_tool_calls", request.one_call ? "false" : "true");
  add("tools", echoed(fields, "tools", "[]"));
  add("tool_choice", echoed(fields, "tool_choice", R"("auto")"));
  add("text", echoed(fields, "text", R"({"format":{"type":"text"}})"));
  const std::string effort = !prompt.thinking ? R"("none")" : '"' + prompt.effort.value_or("low") + '"';
  add("reasoning", R"({"effort":)" + effort + R"(,"summary":null})");
  add("temperature", fmt::format("{}", request.sampling.temperature));
  add("top_p", fmt::format("{}", request.sampling.top_p));
  add("user", echoed(fields, "user", "null"));
  add("previous_response_id", "null");
  add("store", "false");
  add("background", "false");
  add("truncation", R"("disabled")");
  add("service_tier", R"("default")");
  return out;
}

}  // namespace

ResponsesCall read_responses_call(const HttpRequest& http, Api& api, uint64_t random) {
  ResponsesCall call;
  TextRequest& r = call.request;
  OutputRequest in(http, api.model(), random, r);
  Fields& fields = in.fields;
  auto& warnings = in.common.warnings;
  if (r.n != 1) fields.refuse("n", "other than 1 is not supported here");
  refuse_what_is_missing(fields, warnings);
  r.one_call = !fields.boolean("parallel_tool_calls").value_or(true);

  ChatPrompt prompt;
  prompt.where = "input";
  prompt.messages = read_response_input(fields, warnings);
  const JsonValue tools = read_response_tools(fields, warnings);
  const ThinkingChoice thinking = read_reasoning(fields, warnings);
  OutputForm form;
  read_text(fields, form, warnings);
  read_tool_choice(fields, tools, r.one_call, form);
  if (!tools.items.empty() && !form.no_calls) prompt.tools = text::write_json(tools);
  prompt.response_format = form.response_format;
  apply_thinking(thinking, api.model().thinking, prompt, warnings);
  const auto most = fields.integer("max_output_tokens", 1, INT32_MAX);
  warn_of_unknown(fields, warnings);

  set_chat(prompt, form, thinking, most, api, r, warnings);
  call.common = std::move(in.common);
  call.echo = echo_of(fields, r, prompt);
  return call;
}

}  // namespace fathom::serve
