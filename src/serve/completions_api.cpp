// /v1/completions: text or ids in, text out, with echo and log probabilities.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>

#include "base/utf8.h"
#include "serve/api.h"
#include "serve/chat_prompt.h"
#include "serve/openai_json.h"
#include "serve/sampling_fields.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

constexpr int64_t kDefaultTokens = 16;  // as OpenAI has it

/// One prompt as the client gave it.
struct GivenPrompt {
  std::string text;    // for echo
  bool added = false;  // a begin token was put before it
};

struct CompletionCall {
  TextRequest request;
  CommonFields common;
  std::vector<GivenPrompt> prompts;
  bool echo = false, logprobs = false;
  bool no_output = false;  // max_tokens 0: only the prompt is wanted
};

class PromptReader {
 public:
  PromptReader(Fields& fields, const ApiModel& model, CompletionCall& call)
      : fields_(fields), model_(model), call_(call) {}

  void read() {
    add_begin_ = fields_.boolean("add_special_tokens").value_or(true);
    const JsonValue* prompt = fields_.find("prompt");
    if (!prompt) fields_.refuse("prompt", "is missing: it must be text, a list of token ids, or a list of these");
    const bool ids = prompt->is(Kind::array) && !prompt->items.empty() && prompt->items.front().is(Kind::number);
    if (!prompt->is(Kind::array) || ids) return one(*prompt);
    if (prompt->items.empty()) fields_.refuse("prompt", "is an empty list");
    for (const JsonValue& item : prompt->items) one(item);
  }

 private:
  void one(const JsonValue& v) {
    GivenPrompt given;
    std::vector<int32_t> ids;
    if (v.is(Kind::string)) {
      given.text = v.text;
      model_.tokenizer->encode(v.text, text::AddedTokens::recognise, ids);
      if (add_begin_ && (ids.empty() || ids.front() != model_.config->bos_id)) {
        ids.insert(ids.begin(), model_.config->bos_id);
        given.added = true;
      }
      if (ids.empty())
        fields_.refuse("prompt", "is empty, and add_special_tokens is off: at least one token is needed");
    } else if (v.is(Kind::array)) {
      ids = read_ids(v);
      for (const int32_t id : ids)
        given.text += model_.tokenizer->has(id) ? std::string(model_.tokenizer->bytes(id)) : "\xEF\xBF\xBD";
      given.text = utf8_repaired(given.text);
    } else {
      fields_.refuse("prompt",
                     fmt::format("holds {}: it must be text, a list of token ids, or a list of these", kind_of(v)));
    }
    call_.request.prompts.push_back(std::move(ids));
    call_.prompts.push_back(std::move(given));
  }

  std::vector<int32_t> read_ids(const JsonValue& list) {
    if (list.items.empty()) fields_.refuse("prompt", "is an empty list of token ids");
    std::vector<int32_t> ids;
    for (const JsonValue& item : list.items) {
      const auto id = number_of(item);
      if (!id || *id < 0 || *id >= model_.config->vocab_size || *id != static_cast<int32_t>(*id))
        fields_.refuse("prompt", fmt::format("holds a token id that is not a whole number from 0 to {}",
                                             model_.config->vocab_size - 1));
      ids.push_back(static_cast<int32_t>(*id));
    }
    return ids;
  }

  Fields& fields_;
  const ApiModel& model_;
  CompletionCall& call_;
  bool add_begin_ = true;
};

CompletionCall read_completion(const HttpRequest& http, Api& api, uint64_t random) {
  CompletionCall call;
  TextRequest& r = call.request;
  OutputRequest in(http, api.model(), random, r);
  Fields& fields = in.fields;
  call.common = std::move(in.common);
  PromptReader(fields, api.model(), call).read();
  const auto choices = static_cast<int64_t>(r.prompts.size()) * r.n;
  if (choices > api.model().max_choices)
    fields.refuse("n", fmt::format("times the number of prompts is {}, this server makes at most {} outputs a request",
                                   choices, api.model().max_choices));
  call.echo = fields.boolean("echo").value_or(false);
  if (const auto top = fields.integer("logprobs", 0, 20)) {
    call.logprobs = true;
    r.sampling.top_logprobs = static_cast<int>(*top);
    r.prompt_logprobs = call.echo;
  }
  r.text.show_special = !fields.boolean("skip_special_tokens").value_or(true);
  if (const auto best = fields.integer("best_of", 1, INT32_MAX); best && *best != r.n)
    fields.refuse("best_of", "other than n is not supported");
  for (const char* name : {"suffix", "response_format", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "structured_outputs", "use_beam_search", "prompt_logprobs"})
    if (const JsonValue* value = fields.find(name); value && value->truthy()) fields.refuse(name, "is not supported");
  const auto most = fields.integer("max_tokens", 0, INT32_MAX);
  call.no_output = most && *most == 0;
  r.max_tokens = std::max<int64_t>(1, most.value_or(kDefaultTokens));  // one more than 0 is generated and not shown
  warn_of_unknown(fields, call.common.warnings);
  for (const auto& prompt : r.prompts)  // what one prompt leaves is not what another leaves: the engine counts each
    fitting_tokens(prompt.size(), call.no_output ? std::nullopt : most, api, call.common.warnings);
  return call;
}

/// The logprobs object of one choice, or of one piece of it.
class LogprobList {
 public:
  explicit LogprobList(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(const SampledToken& token, bool first_of_all) {
    const char* comma = tokens_.empty() ? "" : ",";
    const std::string text = token_text(tokenizer_, token.token);
    tokens_ += comma;
    append_quoted(tokens_, text);
    fmt::format_to(std::back_inserter(offsets_), "{}{}", comma, offset_);
    for (size_t at = 0; at < text.size(); at += decode_utf8(text, at).length) ++offset_;
    if (first_of_all) {
      logprobs_ += fmt::format("{}null", comma), top_ += fmt::format("{}null", comma);
      return;
    }
    fmt::format_to(std::back_inserter(logprobs_), "{}{:.6g}", comma, json_logprob(token.logprob));
    top_ += comma;
    top_ += '{';
    bool among = false;
    for (size_t i = 0; i < token.top.size(); ++i) {
      entry(token.top[i].token, token.top[i].logprob, i > 0);
      among = among || token.top[i].token == token.token;
    }
    if (!among) entry(token.token, token.logprob, !token.top.empty());
    top_ += '}';
  }
  /// The object with what was added since the last call.
  std::string take() {
    std::string out = fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                                  tokens_, logprobs_, top_, offsets_);
    tokens_.clear(), logprobs_.clear(), top_.clear(), offsets_.clear();
    return out;
  }

 private:
  void entry(int32_t token, float logprob, bool comma) {
    if (comma) top_ += ',';
    append_quoted(top_, token_text(tokenizer_, token));
    fmt::format_to(std::back_inserter(top_), ":{:.6g}", json_logprob(logprob));
  }
  const text::Tokenizer& tokenizer_;
  std::string tokens_, logprobs_, top_, offsets_;
  int64_t offset_ = 0;
};

/// Both kinds of answers: pieces go out at once, or are kept until the end.
class CompletionAnswer final : public TextListener {
 public:
  CompletionAnswer(Api& api, std::shared_ptr<Exchange> exchange, CompletionCall call)
      : api_(api), exchange_(std::move(exchange)), call_(std::move(call)), created_(std::time(nullptr)) {
    id_ = "cmpl-" + api_.new_id();
    const auto count = call_.prompts.size() * static_cast<size_t>(call_.request.n);
    for (size_t i = 0; i < count; ++i) {
      const GivenPrompt& given = call_.prompts[i / static_cast<size_t>(call_.request.n)];
      Choice& choice = choices_.emplace_back(*api_.model().tokenizer);
      if (call_.echo) choice.text = given.text;
      choice.begin_added = given.added;
      if (call_.echo && call_.logprobs && !given.added)
        choice.logprobs.add({call_.request.prompts[i / static_cast<size_t>(call_.request.n)].front(), 0, {}}, true);
    }
  }
  TextRequest take_request() { return std::move(call_.request); }

  void on_accepted() override {
    if (!call_.common.stream) return;
    exchange_->add_header("cache-control", "no-cache");
    exchange_->add_header("x-accel-buffering", "no");
    exchange_->begin(200, "text/event-stream; charset=utf-8");
  }

  void on_delta(const ChoiceDelta& d) override {
    Choice& choice = choices_[static_cast<size_t>(d.choice)];
    for (const SampledToken& token : d.prompt_tokens) choice.logprobs.add(token, false), choice.news = true;
    if (!call_.no_output) {
      choice.text += d.piece.content;
      if (call_.logprobs)
        for (const SampledToken& token : d.tokens) choice.logprobs.add(token, false), choice.news = true;
    }
    if (call_.common.stream && (!choice.text.empty() || choice.news)) send(d.choice, choice, "null");
  }

  void on_finish(int index, const ChoiceFinish& finish) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    const bool length = finish.kind == ChoiceFinish::Kind::length || call_.no_output;
    choice.finish = length ? R"("length","stop_reason":)" : R"("stop","stop_reason":)";
    if (!finish.stop_string.empty())
      append_quoted(choice.finish, finish.stop_string);
    else
      choice.finish += finish.stop_id >= 0 ? std::to_string(finish.stop_id) : "null";
    const bool last = ++finished_ == choices_.size();
    if (last && !call_.common.include_usage)
      last_ = static_cast<size_t>(index);  // goes out with the usage
    else if (call_.common.stream)
      send(index, choice, choice.finish);
  }

  void on_done(const Usage& given, const std::optional<Failure>& failure) override {
    if (failure && !exchange_->begun()) return api_.fail(*exchange_, openai_error, error_of(*failure));
    Usage usage = given;
    if (call_.no_output) usage.completion_tokens = 0;
    if (!call_.common.stream) {
      std::string out = head();
      for (size_t i = 0; i < choices_.size(); ++i) {
        if (i) out += ',';
        append_choice(out, static_cast<int>(i), choices_[i], choices_[i].finish);
      }
      return exchange_->reply(200, "application/json", out + R"(],"usage":)" + usage_json(usage) + "}\n");
    }
    if (failure)
      exchange_->write("data: " + openai_error(error_of(*failure)) + "\n\n");
    else
      write_usage(usage);
    exchange_->write("data: [DONE]\n\n");
    exchange_->end();
  }

 private:
  struct Choice {
    explicit Choice(const text::Tokenizer& tokenizer) : logprobs(tokenizer) {}
    std::string text, finish;
    LogprobList logprobs;
    bool news = false, begin_added = false;
  };

  std::string head() const {
    std::string out = fmt::format(R"({{"id":"{}","object":"text_completion","created":{},"model":)", id_, created_);
    append_quoted(out, call_.common.model);
    return out + R"(,"choices":[)";
  }
  void append_choice(std::string& out, int index, Choice& choice, std::string_view finish) {
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", index);
    append_quoted(out, choice.text);
    out += R"(,"logprobs":)" + (call_.logprobs ? choice.logprobs.take() : std::string("null"));
    fmt::format_to(std::back_inserter(out), R"(,"finish_reason":{}}})", finish);
  }
  /// As for chats: in a chunk of its own when the client has asked for it, else in the last one.
  void write_usage(const Usage& usage) {
    std::string out = "data: " + head();
    if (!call_.common.include_usage)
      append_choice(out, static_cast<int>(last_), choices_[last_], choices_[last_].finish);
    exchange_->write(out + R"(],"usage":)" + usage_json(usage) + "}\n\n");
  }
  void send(int index, Choice& choice, std::string_view finish) {
    std::string out = "data: " + head();
    append_choice(out, index, choice, finish);
    exchange_->write(out + (call_.common.include_usage ? R"(],"usage":null})" : "]}") + "\n\n");
    choice.text.clear(), choice.news = false;
  }

  Api& api_;
  std::shared_ptr<Exchange> exchange_;
  CompletionCall call_;
  int64_t created_;
  std::string id_;
  std::vector<Choice> choices_;
  size_t finished_ = 0, last_ = 0;
};

void complete(Api& api, const std::shared_ptr<Exchange>& exchange) {
  const uint64_t random = api.random();
  api.prepare(exchange, openai_error, [&api, exchange, random]() -> std::function<void()> {
    auto call = std::make_shared<CompletionCall>(read_completion(exchange->request(), api, random));
    return [&api, exchange, call] {
      add_warnings(*exchange, call->common.warnings);
      const auto answer = std::make_shared<CompletionAnswer>(api, exchange, std::move(*call));
      api.start(exchange, answer->take_request(), answer);
    };
  });
}

}  // namespace

std::vector<RouteEntry> completions_routes() {
  return {{"POST", "/v1/completions", complete, "OpenAI's completions of plain prompts"}};
}

}  // namespace fathom::serve
