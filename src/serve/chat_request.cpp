#include "serve/chat_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/chat_prompt.h"
#include "serve/fields.h"
#include "serve/output_form.h"
#include "text/chat_json.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

void set_member(JsonValue& object, const char* name, JsonValue value) {
  for (auto& member : object.members)
    if (member.name == name) {
      member.value = std::move(value);
      return;
    }
  object.members.emplace_back(name, std::move(value));
}

/// Other spellings of what the encoding knows: `reasoning` for reasoning_content, `prefix` for wo_eos.
void translate_message(JsonValue& message) {
  if (!message.is(Kind::object)) return;
  const JsonValue* content = message.find("reasoning_content");
  if (!content || content->is(Kind::null))
    if (const JsonValue* reasoning = message.find("reasoning"); reasoning && reasoning->is(Kind::string))
      set_member(message, "reasoning_content", JsonValue(*reasoning));
  if (const JsonValue* prefix = message.find("prefix"); prefix && prefix->is(Kind::boolean) && prefix->truth)
    set_member(message, "wo_eos", JsonValue(*prefix));
}

std::vector<text::Message> read_messages(Fields& fields) {
  const JsonValue* given = fields.find("messages");
  if (!given) fields.refuse("messages", "is missing: it must be a list of messages");
  JsonValue list = *given;
  for (JsonValue& message : list.items) translate_message(message);
  if (fields.boolean("continue_final_message").value_or(false) && !list.items.empty())
    set_member(list.items.back(), "wo_eos", JsonValue{.kind = Kind::boolean, .truth = true});
  if (const auto generate = fields.boolean("add_generation_prompt"); generate && !*generate)
    fields.refuse("add_generation_prompt", "false is not supported: the encoding decides by the last message");
  return text::messages_from_value(list, "messages");
}

/// The tools as JSON, checked; empty when there are none.
std::string read_tools(Fields& fields, std::vector<std::string>& warnings) {
  const JsonValue* tools = fields.find("tools");
  if (!tools) return "";
  if (!tools->is(Kind::array)) fields.refuse("tools", fmt::format("is {}, it must be a list", kind_of(*tools)));
  for (size_t i = 0; i < tools->items.size(); ++i) {
    const JsonValue& tool = tools->items[i];
    const std::string place = fmt::format("tools[{}]", i);
    const JsonValue* type = tool.find("type");
    if (!tool.is(Kind::object) || !type || !type->is(Kind::string) || type->text != "function")
      fields.refuse(place, "is not supported: it must be an object of type \"function\"");
    const JsonValue* function = tool.find("function");
    const JsonValue* name = function ? function->find("name") : nullptr;
    if (!name || !name->is(Kind::string) || name->text.empty()) fields.refuse(place, "has no function with a name");
    if (const JsonValue* strict = function->find("strict"); strict && strict->truthy())
      warnings.push_back(place + ": strict is not enforced");
  }
  return tools->items.empty() ? "" : text::write_json(*tools);
}

void refuse_what_is_missing(Fields& fields) {
  for (const char* name : {"functions", "function_call"})
    if (fields.find(name)) fields.refuse(name, "is not supported: use tools and tool_choice");
  for (const char* name : {"audio", "web_search_options", "prediction", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "structured_outputs", "structural_tag", "best_of", "use_beam_search"})
    if (const JsonValue* value = fields.find(name); value && value->truthy()) fields.refuse(name, "is not supported");
  for (const std::string& modality : fields.texts("modalities", 8))
    if (modality != "text") fields.refuse("modalities", "other than text are not supported");
}

ThinkingChoice read_thinking(Fields& fields, std::vector<std::string>& warnings, ChatPrompt& prompt) {
  ThinkingChoice out;
  out.effort = fields.text("reasoning_effort");
  if (const JsonValue* thinking = fields.find("thinking")) {
    if (thinking->is(Kind::boolean)) {
      out.on = thinking->truth;
    } else if (thinking->is(Kind::object)) {
      Fields inner(*thinking, "thinking.");
      const std::string type = inner.text("type").value_or("enabled");
      if (type != "enabled" && type != "disabled") inner.refuse("type", "must be \"enabled\" or \"disabled\"");
      out.on = type == "enabled";
      out.budget = inner.integer("budget_tokens", 0, INT32_MAX);
      warn_of_unknown(inner, warnings);
    } else {
      fields.refuse("thinking", "must be {\"type\": \"enabled\"} or {\"type\": \"disabled\"}");
    }
  }
  if (const JsonValue* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    if (const auto effort = inner.text("effort")) out.effort = effort;
    if (const auto enabled = inner.boolean("enabled")) out.on = enabled;
    if (const auto budget = inner.integer("max_tokens", 0, INT32_MAX)) out.budget = budget;
    warn_of_unknown(inner, warnings);
  }
  if (const JsonValue* arguments = fields.object("chat_template_kwargs")) {
    Fields inner(*arguments, "chat_template_kwargs.");
    for (const char* name : {"thinking", "enable_thinking"})
      if (const auto on = inner.boolean(name)) out.on = on;
    if (const auto effort = inner.text("reasoning_effort")) out.effort = effort;
    if (const auto drop = inner.boolean("drop_thinking")) prompt.drop_thinking = *drop;
    warn_of_unknown(inner, warnings);
  }
  for (const char* name : {"thinking_budget", "thinking_token_budget"})
    if (const auto budget = fields.integer(name, 0, INT32_MAX)) out.budget = budget;
  return out;
}

/// Messages, tools, thinking and the form of the output.
ChatPrompt read_prompt(Fields& fields, Api& api, ThinkingChoice& thinking, OutputForm& form, bool one_call,
                       std::vector<std::string>& warnings) {
  ChatPrompt prompt;
  prompt.messages = read_messages(fields);
  prompt.tools = read_tools(fields, warnings);
  form = read_output_form(fields, fields.find("tools"), one_call);
  if (form.no_calls) prompt.tools.clear();
  prompt.response_format = form.response_format;
  refuse_what_is_missing(fields);
  thinking = read_thinking(fields, warnings, prompt);
  apply_thinking(thinking, api.model().thinking, prompt, warnings);
  return prompt;
}

}  // namespace

ChatCall read_chat(const HttpRequest& http, Api& api, uint64_t random) {
  ChatCall call;
  TextRequest& r = call.request;
  OutputRequest in(http, api.model(), random, r);
  Fields& fields = in.fields;
  auto& warnings = in.common.warnings;

  ThinkingChoice thinking;
  OutputForm form;
  r.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  const ChatPrompt prompt = read_prompt(fields, api, thinking, form, r.one_call, warnings);

  call.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !call.logprobs) fields.refuse("top_logprobs", "needs logprobs to be true");
  if (call.logprobs) r.sampling.top_logprobs = static_cast<int>(top.value_or(0));
  const auto most = fields.integer("max_tokens", 1, INT32_MAX),
             most_completion = fields.integer("max_completion_tokens", 1, INT32_MAX);
  warn_of_unknown(fields, warnings);
  set_chat(prompt, form, thinking, most_completion ? most_completion : most, api, r, warnings);
  call.common = std::move(in.common);
  return call;
}

std::vector<int32_t> chat_prompt_ids(const HttpRequest& http, Api& api, std::vector<std::string>& warnings) {
  const JsonValue body = read_body(http);
  Fields fields(body);
  fields.ignore({"model", "add_special_tokens", "return_token_strs"});
  ThinkingChoice thinking;
  OutputForm form;
  const ChatPrompt prompt = read_prompt(fields, api, thinking, form, false, warnings);
  warn_of_unknown(fields, warnings);
  return encode_prompt(prompt, *api.model().tokenizer).ids;
}

}  // namespace fathom::serve
