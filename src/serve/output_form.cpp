#include "serve/output_form.h"

#include <array>

#include "text/constrain/json_grammar.h"
#include "text/constrain/tool_grammar.h"
#include "text/protocol.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

constexpr double kNever = -1000;  // a logit bias that no token survives

bool is_text(const JsonValue* v, std::string_view text) {
  return v && v->is(Kind::string) && v->text == text;
}

/// Error of the grammar as an error of the request.
template <typename Build>
text::Grammar enforced(Fields& fields, const char* field, const Build& build) {
  try {
    return build();
  } catch (const Error& e) {
    fields.refuse(field, std::string("cannot be enforced: ") + e.what());
  }
}

std::optional<text::Grammar> read_response_format(Fields& fields, std::string& for_prompt) {
  const JsonValue* format = fields.object("response_format");
  if (!format) return {};
  const JsonValue* type = format->find("type");
  if (is_text(type, "text")) return {};
  if (is_text(type, "json_object")) {
    for_prompt = text::write_json(*format);
    return text::json_object_grammar();
  }
  if (!is_text(type, "json_schema"))
    fields.refuse("response_format", "must have the type \"text\", \"json_object\" or \"json_schema\"");
  const JsonValue* inner = format->find("json_schema");
  const JsonValue* schema = inner ? inner->find("schema") : format->find("schema");
  if (!schema) fields.refuse("response_format", "of type json_schema needs json_schema.schema");
  for_prompt = text::write_json(*format);
  return enforced(fields, "response_format", [&] { return text::json_schema_grammar(*schema); });
}

}  // namespace

text::Grammar calls_of(Fields& fields, const JsonValue& tools, const std::optional<std::string>& name, bool one_call) {
  std::vector<text::ToolFunction> functions;
  for (const JsonValue& tool : tools.items) {
    const JsonValue* function = tool.find("function");
    const JsonValue* its_name = function ? function->find("name") : nullptr;
    if (!its_name || (name && its_name->text != *name)) continue;
    const JsonValue* parameters = function->find("parameters");
    functions.push_back({its_name->text, parameters && !parameters->is(Kind::null) ? parameters : nullptr});
  }
  if (name && functions.empty())
    fields.refuse("tool_choice", "names a function that is not among the tools: " + printable(*name));
  return enforced(fields, "tool_choice", [&] { return text::tool_call_grammar(functions, !one_call); });
}

void require_schema(Fields& fields, const char* field, const JsonValue& schema, OutputForm& form) {
  form.grammar = enforced(fields, field, [&] { return text::json_schema_grammar(schema); });
  form.response_format = R"({"type": "json_schema", "json_schema": {"schema": )" + text::write_json(schema) + "}}";
}

void require_object(OutputForm& form) {
  form.grammar = text::json_object_grammar();
  form.response_format = R"({"type": "json_object"})";
}

OutputForm read_output_form(Fields& fields, const JsonValue* tools, bool one_call) {
  OutputForm form;
  const bool have_tools = tools && tools->is(Kind::array) && !tools->items.empty();
  std::optional<text::Grammar> calls;
  if (const JsonValue* choice = fields.find("tool_choice")) {
    std::optional<std::string> name;
    if (choice->is(Kind::object)) {
      const JsonValue* function = choice->find("function");
      const JsonValue* wanted = function ? function->find("name") : nullptr;
      if (!is_text(choice->find("type"), "function") || !wanted || !wanted->is(Kind::string))
        fields.refuse("tool_choice",
                      "must be {\"type\": \"function\", \"function\": {\"name\": ...}} when it is an object");
      name = wanted->text;
    } else if (!is_text(choice, "none") && !is_text(choice, "auto") && !is_text(choice, "required")) {
      fields.refuse("tool_choice", "must be \"none\", \"auto\", \"required\" or a function");
    }
    form.no_calls = is_text(choice, "none");
    if (name || is_text(choice, "required")) {
      if (!have_tools) fields.refuse("tool_choice", "asks for a call, but there are no tools");
      calls = calls_of(fields, *tools, name, one_call || name.has_value());
    }
  }
  form.grammar = read_response_format(fields, form.response_format);
  if (form.grammar && have_tools && !form.no_calls)
    fields.refuse("response_format", "cannot stand beside tools that may be called: set tool_choice to \"none\"");
  if (calls) form.grammar = std::move(calls);
  return form;
}

void set_form(const OutputForm& form, bool thinking, const ApiModel& model, TextRequest& request) {
  if (form.no_calls)
    if (const auto dsml = model.tokenizer->added_id(text::protocol::kDsml))
      request.sampling.logit_bias.emplace_back(*dsml, kNever);
  if (!form.grammar) return;
  if (request.ignore_end)
    throw ApiError(400, "invalid_request_error",
                   "ignore_eos cannot stand beside response_format or a required call: such an output ends",
                   "ignore_eos");
  std::optional<int32_t> before;
  if (thinking) before = model.tokenizer->added_id(text::protocol::kThinkEnd);
  request.constraint = std::make_shared<text::Constraint>(*form.grammar, model.tokens, request.end_ids, before);
}

namespace {

/// The sampling that the model recommends, whatever the request says.
void drop_sampling(const SamplingParams& recommended, SamplingParams& s, std::vector<std::string>& warnings) {
  SamplingParams kept = recommended;
  kept.seed = s.seed, kept.logit_bias = s.logit_bias, kept.top_logprobs = s.top_logprobs;
  const auto options = [](const SamplingParams& p) {
    return std::array{p.temperature,
                      p.top_p,
                      p.min_p,
                      p.repetition_penalty,
                      p.frequency_penalty,
                      p.presence_penalty,
                      static_cast<double>(p.top_k)};
  };
  if (options(kept) != options(s))
    warnings.push_back("temperature, filters and penalties have no effect in thinking mode (--compat official)");
  s = kept;
}

}  // namespace

void set_chat(const ChatPrompt& prompt, const OutputForm& form, const ThinkingChoice& thinking,
              const std::optional<int64_t>& max_tokens, Api& api, TextRequest& request,
              std::vector<std::string>& warnings) {
  EncodedPrompt encoded = encode_prompt(prompt, *api.model().tokenizer);
  if (encoded.thinking && api.model().official) drop_sampling(api.model().recommended, request.sampling, warnings);
  set_form(form, encoded.thinking, api.model(), request);
  set_prompt(std::move(encoded), thinking.budget, max_tokens, api, request, warnings);
}

}  // namespace fathom::serve
