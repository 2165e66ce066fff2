// /v1/models, /tokenize, /detokenize: what the model is, and text and ids without generating.
#include <fmt/format.h>

#include <ctime>
#include <iterator>

#include "serve/api.h"
#include "serve/chat_request.h"
#include "serve/fields.h"
#include "serve/openai_json.h"

namespace fathom::serve {
namespace {

/// OpenAI's members of a model and, behind them, Anthropic's: both ask at the same path.
std::string model_json(Api& api, const std::string& name) {
  std::string out = R"({"id":)";
  append_quoted(out, name);
  fmt::format_to(std::back_inserter(out), R"(,"object":"model","created":{},"owned_by":"fathom","root":)",
                 api.model().created);
  append_quoted(out, api.model().names.front());
  fmt::format_to(std::back_inserter(out), R"(,"parent":null,"max_model_len":{},"type":"model","display_name":)",
                 api.service().limits().max_context);
  append_quoted(out, name);
  const std::time_t created = api.model().created;
  std::tm utc{};
  char text[32] = "";
  if (gmtime_r(&created, &utc)) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return out + fmt::format(R"(,"created_at":"{}"}})", text);
}

void models(Api& api, const std::shared_ptr<Exchange>& exchange) {
  std::string out = R"({"object":"list","data":[)";
  for (const std::string& name : api.model().names) {
    if (name != api.model().names.front()) out += ',';
    out += model_json(api, name);
  }
  out += R"(],"has_more":false,"first_id":)";
  append_quoted(out, api.model().names.front());
  out += R"(,"last_id":)";
  append_quoted(out, api.model().names.back());
  exchange->reply(200, "application/json", out + "}\n");
}

/// /v1/models/NAME
void one_model(Api& api, const std::shared_ptr<Exchange>& exchange) {
  const std::string wanted = exchange->request().path.substr(std::string_view("/v1/models/").size());
  for (const std::string& name : api.model().names)
    if (name == wanted) return exchange->reply(200, "application/json", model_json(api, name) + "\n");
  api.fail(*exchange, openai_error,
           ApiError(404, "invalid_request_error", fmt::format("the model {} does not exist here", printable(wanted)),
                    "model", "model_not_found"));
}

std::vector<int32_t> text_ids(Fields& fields, Api& api) {
  const auto prompt = fields.text("prompt");
  if (!prompt) fields.refuse("prompt", "is missing: give prompt (text) or messages");
  const bool begin = fields.boolean("add_special_tokens").value_or(true);
  auto ids = api.model().tokenizer->encode(*prompt, text::AddedTokens::recognise);
  if (begin && (ids.empty() || ids.front() != api.model().config->bos_id))
    ids.insert(ids.begin(), api.model().config->bos_id);
  return ids;
}

void tokenize(Api& api, const std::shared_ptr<Exchange>& exchange) {
  api.prepare(exchange, openai_error, [&api, exchange]() -> std::function<void()> {
    const text::JsonValue body = read_body(exchange->request());
    Fields fields(body);
    std::vector<std::string> warnings;
    const bool strings = fields.boolean("return_token_strs").value_or(false);
    std::vector<int32_t> ids;
    if (fields.find("messages")) {
      ids = chat_prompt_ids(exchange->request(), api, warnings);
    } else {
      ids = text_ids(fields, api);
      fields.ignore({"model"});
      warn_of_unknown(fields, warnings);
    }
    std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":)", ids.size(),
                                  api.service().limits().max_context, fmt::join(ids, ","));
    if (strings) {
      out += '[';
      for (size_t i = 0; i < ids.size(); ++i) {
        if (i) out += ',';
        append_quoted(out, token_text(*api.model().tokenizer, ids[i]));
      }
      out += ']';
    } else {
      out += "null";
    }
    return [exchange, warnings, out = out + "}\n"] {
      add_warnings(*exchange, warnings);
      exchange->reply(200, "application/json", out);
    };
  });
}

void detokenize(Api& api, const std::shared_ptr<Exchange>& exchange) {
  api.prepare(exchange, openai_error, [&api, exchange]() -> std::function<void()> {
    const text::JsonValue body = read_body(exchange->request());
    Fields fields(body);
    if (!fields.find("tokens")) fields.refuse("tokens", "is missing: it must be a list of token ids");
    const auto wide = fields.integers("tokens", SIZE_MAX, 0, api.model().tokenizer->vocab_size() - 1);
    std::vector<int32_t> ids(wide.begin(), wide.end());
    fields.ignore({"model"});
    std::vector<std::string> warnings;
    warn_of_unknown(fields, warnings);
    std::string out = R"({"prompt":)";
    append_quoted(out, api.model().tokenizer->decode(ids));
    return [exchange, warnings, out = out + "}\n"] {
      add_warnings(*exchange, warnings);
      exchange->reply(200, "application/json", out);
    };
  });
}

}  // namespace

std::vector<RouteEntry> model_routes() {
  return {{"GET", "/v1/models", models, "the models that are served"},
          {"GET", "/v1/models/*", one_model, "one of them"},
          {"POST", "/tokenize", tokenize, "text or messages to token ids"},
          {"POST", "/detokenize", detokenize, "token ids to text"}};
}

}  // namespace fathom::serve
