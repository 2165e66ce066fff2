#include "serve/messages_request.h"

#include <fmt/format.h>

#include "serve/chat_prompt.h"
#include "serve/fields.h"
#include "serve/messages_content.h"
#include "serve/output_form.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

ThinkingChoice read_thinking(Fields& fields, std::vector<std::string>& warnings) {
  ThinkingChoice out;
  const JsonValue* thinking = fields.object("thinking");
  if (!thinking) return out;
  Fields inner(*thinking, "thinking.");
  const std::string type = inner.text("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    inner.refuse("type", R"(must be "enabled", "disabled" or "adaptive")");
  out.on = type != "disabled";
  out.budget = inner.integer("budget_tokens", 0, INT32_MAX);
  if (const auto display = inner.text("display"); display && *display != "summarized")
    warnings.push_back("thinking.display does nothing: thinking is shown as it is");
  warn_of_unknown(inner, warnings);
  return out;
}

/// output_config: effort and a JSON schema.
void read_output_config(Fields& fields, ThinkingChoice& thinking, OutputForm& form,
                        std::vector<std::string>& warnings) {
  const JsonValue* config = fields.object("output_config");
  const JsonValue* format = nullptr;
  if (config) {
    Fields inner(*config, "output_config.");
    thinking.effort = inner.text("effort");
    format = inner.object("format");
    warn_of_unknown(inner, warnings);
  }
  if (const JsonValue* old = fields.object("output_format"); old && !format) format = old;
  if (!format) return;
  Fields inner(*format, "output_config.format.");
  if (inner.text("type").value_or("") != "json_schema") inner.refuse("type", R"(must be "json_schema")");
  const JsonValue* schema = inner.find("schema");
  if (!schema) inner.refuse("schema", "is missing");
  require_schema(inner, "schema", *schema, form);
  warn_of_unknown(inner, warnings);
}

/// True when at most one call may come.
bool read_tool_choice(Fields& fields, const JsonValue& tools, OutputForm& form, std::vector<std::string>& warnings) {
  const JsonValue* choice = fields.object("tool_choice");
  std::string type = "auto";
  bool one_call = false, forced = false;
  std::optional<std::string> name;
  if (choice) {
    Fields inner(*choice, "tool_choice.");
    type = inner.text("type").value_or("");
    one_call = inner.boolean("disable_parallel_tool_use").value_or(false);
    if (type == "tool") {
      name = inner.text("name");
      if (!name) inner.refuse("name", "is missing");
    } else if (type != "auto" && type != "any" && type != "none") {
      inner.refuse("type", R"(must be "auto", "any", "tool" or "none")");
    }
    warn_of_unknown(inner, warnings);
    forced = type == "any" || type == "tool";
    if (forced && tools.items.empty()) fields.refuse("tool_choice", "asks for a call, but there are no tools");
  }
  form.no_calls = type == "none";
  if (form.grammar && !tools.items.empty() && !form.no_calls)
    fields.refuse("output_config.format",
                  "cannot stand beside tools that may be called: set tool_choice to {\"type\": \"none\"}");
  if (forced) form.grammar = calls_of(fields, tools, name, one_call || name.has_value());
  return one_call;
}

void refuse_what_is_missing(Fields& fields) {
  for (const char* name : {"container", "mcp_servers", "functions", "prompt"})
    if (const JsonValue* value = fields.find(name); value && value->truthy()) fields.refuse(name, "is not supported");
}

struct MessagesPrompt {
  ChatPrompt prompt;
  ThinkingChoice thinking;
  OutputForm form;
  bool one_call = false;
};

MessagesPrompt read_prompt(Fields& fields, Api& api, std::vector<std::string>& warnings) {
  MessagesPrompt out;
  refuse_what_is_missing(fields);
  out.prompt.messages = read_anthropic_messages(fields, warnings);
  const JsonValue tools = read_anthropic_tools(fields, warnings);
  out.thinking = read_thinking(fields, warnings);
  read_output_config(fields, out.thinking, out.form, warnings);
  out.one_call = read_tool_choice(fields, tools, out.form, warnings);
  if (!tools.items.empty() && !out.form.no_calls) out.prompt.tools = text::write_json(tools);
  out.prompt.response_format = out.form.response_format;
  // Here an effort says how much to think, not whether.
  if (!out.thinking.on) out.thinking.on = api.model().thinking;
  apply_thinking(out.thinking, api.model().thinking, out.prompt, warnings);
  fields.ignore({"cache_control"});
  return out;
}

}  // namespace

MessagesCall read_messages_call(const HttpRequest& http, Api& api, uint64_t random) {
  MessagesCall call;
  TextRequest& r = call.request;
  OutputRequest in(http, api.model(), random, r);
  Fields& fields = in.fields;
  auto& warnings = in.common.warnings;
  if (r.n != 1) fields.refuse("n", "other than 1 is not supported here");
  for (const std::string& stop : fields.texts("stop_sequences", 64)) {
    if (stop.empty()) fields.refuse("stop_sequences", "holds an empty text");
    r.text.stop.push_back(stop);
  }
  if (const JsonValue* metadata = fields.object("metadata"); metadata && r.client.empty())
    r.client = Fields(*metadata, "metadata.").text("user_id").value_or("");
  const auto most = fields.integer("max_tokens", 1, INT32_MAX);
  if (!most) fields.refuse("max_tokens", "is missing");

  MessagesPrompt p = read_prompt(fields, api, warnings);
  r.one_call = p.one_call;
  warn_of_unknown(fields, warnings);
  set_chat(p.prompt, p.form, p.thinking, most, api, r, warnings);
  call.common = std::move(in.common);
  call.context_limited = r.max_tokens < *most;
  return call;
}

int64_t count_messages_tokens(const HttpRequest& http, Api& api, std::vector<std::string>& warnings) {
  const JsonValue body = read_body(http);
  Fields fields(body);
  fields.ignore({"model", "max_tokens", "stream", "metadata"});
  const MessagesPrompt p = read_prompt(fields, api, warnings);
  warn_of_unknown(fields, warnings);
  return static_cast<int64_t>(encode_prompt(p.prompt, *api.model().tokenizer).ids.size());
}

}  // namespace fathom::serve
