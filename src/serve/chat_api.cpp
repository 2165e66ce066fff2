// /v1/chat/completions: the answers, streamed and whole.
#include <fmt/format.h>

#include <ctime>
#include <iterator>

#include "serve/api.h"
#include "serve/chat_request.h"
#include "serve/openai_json.h"
#include "text/output_parser.h"

namespace fathom::serve {
namespace {

using text::OutputKind;

const char* name_of(ChoiceFinish::Kind kind) {
  switch (kind) {
    case ChoiceFinish::Kind::stop:
      return "stop";
    case ChoiceFinish::Kind::length:
      return "length";
    case ChoiceFinish::Kind::tool_calls:
      return "tool_calls";
  }
  return "";
}

/// What both kinds of answers know.
struct ChatContext {
  Api& api;
  std::shared_ptr<Exchange> exchange;
  std::string id;  // of the completion
  std::string model;
  int64_t created = 0;
  bool logprobs = false, include_usage = false;
  int choices = 1;

  std::string call_id(int choice, int call) const { return fmt::format("call_{}_{}_{}", id.substr(9), choice, call); }
  /// ,"stop_reason":"..." for a stop string or id of the request, as vLLM tells it.
  static std::string stop_reason(const ChoiceFinish& f) {
    std::string out = R"(,"stop_reason":)";
    if (!f.stop_string.empty())
      append_quoted(out, f.stop_string);
    else
      out += f.stop_id >= 0 ? std::to_string(f.stop_id) : "null";
    return out;
  }
};

/// Server-sent events, one for each piece of text.
class ChatStream final : public TextListener {
 public:
  explicit ChatStream(ChatContext context) : c_(std::move(context)) {
    head_ =
        fmt::format(R"(data: {{"id":"{}","object":"chat.completion.chunk","created":{},"model":)", c_.id, c_.created);
    append_quoted(head_, c_.model);
    head_ += c_.include_usage ? R"(,"usage":null,"choices":[{"index":)" : R"(,"choices":[{"index":)";
  }

  void on_accepted() override {
    c_.exchange->add_header("cache-control", "no-cache");
    c_.exchange->add_header("x-accel-buffering", "no");
    c_.exchange->begin(200, "text/event-stream; charset=utf-8");
    for (int i = 0; i < c_.choices; ++i) chunk(i, R"("role":"assistant","content":"")", "", "");
  }

  void on_delta(const ChoiceDelta& d) override {
    delta_.clear();
    if (!d.piece.reasoning.empty()) {
      text("reasoning_content", d.piece.reasoning);
      text("reasoning", d.piece.reasoning);
    }
    if (!d.piece.content.empty()) text("content", d.piece.content);
    calls(d);
    std::string logprobs;
    if (c_.logprobs && !d.tokens.empty()) {
      logprobs = R"(,"logprobs":{"content":[)";
      for (size_t i = 0; i < d.tokens.size(); ++i) {
        if (i) logprobs += ',';
        append_logprob(logprobs, *c_.api.model().tokenizer, d.tokens[i]);
      }
      logprobs += "]}";
    }
    if (!delta_.empty() || !logprobs.empty()) chunk(d.choice, delta_, logprobs, "");
  }

  void on_finish(int choice, const ChoiceFinish& finish) override {
    const std::string text = fmt::format(R"("{}"{})", name_of(finish.kind), ChatContext::stop_reason(finish));
    if (++finished_ == c_.choices && !c_.include_usage)
      last_choice_ = choice, last_finish_ = text;  // goes out with the usage
    else
      chunk(choice, "", "", text);
  }

  void on_done(const Usage& usage, const std::optional<Failure>& failure) override {
    if (failure && !c_.exchange->begun()) return c_.api.fail(*c_.exchange, openai_error, error_of(*failure));
    if (failure)
      c_.exchange->write("data: " + openai_error(error_of(*failure)) + "\n\n");
    else
      write_usage(usage);
    c_.exchange->write("data: [DONE]\n\n");
    c_.exchange->end();
  }

 private:
  void text(const char* field, std::string_view value) {
    fmt::format_to(std::back_inserter(delta_), R"({}"{}":)", delta_.empty() ? "" : ",", field);
    append_quoted(delta_, value);
  }

  void calls(const ChoiceDelta& d) {
    std::string out;
    for (const auto& event : d.piece.calls) {
      const char* comma = out.empty() ? "" : ",";
      if (event.kind == OutputKind::call_begin) {
        fmt::format_to(std::back_inserter(out), R"({}{{"index":{},"id":"{}","type":"function","function":{{"name":)",
                       comma, event.call, c_.call_id(d.choice, event.call));
        append_quoted(out, event.text);
        out += R"(,"arguments":""}})";
      } else if (event.kind == OutputKind::call_arguments) {
        fmt::format_to(std::back_inserter(out), R"({}{{"index":{},"function":{{"arguments":)", comma, event.call);
        append_quoted(out, event.text);
        out += "}}";
      }
    }
    if (!out.empty())
      fmt::format_to(std::back_inserter(delta_), R"({}"tool_calls":[{}])", delta_.empty() ? "" : ",", out);
  }

  void chunk(int choice, std::string_view delta, std::string_view logprobs, std::string_view finish,
             std::string_view behind = "") {
    out_.assign(head_);
    fmt::format_to(std::back_inserter(out_), R"({},"delta":{{{}}}{},"finish_reason":{}}}]{}}})", choice, delta,
                   logprobs, finish.empty() ? "null" : finish, behind);
    out_ += "\n\n";
    c_.exchange->write(out_);
  }

  /// Usage has a chunk without choices when the client has asked for it. Others may not expect such a chunk: they find
  /// it beside the last finish reason.
  void write_usage(const Usage& usage) {
    if (!c_.include_usage) return chunk(last_choice_, "", "", last_finish_, R"(,"usage":)" + usage_json(usage));
    std::string out =
        fmt::format(R"(data: {{"id":"{}","object":"chat.completion.chunk","created":{},"model":)", c_.id, c_.created);
    append_quoted(out, c_.model);
    out += R"(,"choices":[],"usage":)" + usage_json(usage) + "}\n\n";
    c_.exchange->write(out);
  }

  ChatContext c_;
  std::string head_, out_, delta_, last_finish_;
  int finished_ = 0, last_choice_ = 0;
};

/// One JSON object at the end.
class ChatWhole final : public TextListener {
 public:
  explicit ChatWhole(ChatContext context) : c_(std::move(context)), choices_(static_cast<size_t>(c_.choices)) {}

  void on_delta(const ChoiceDelta& d) override {
    Choice& choice = choices_[static_cast<size_t>(d.choice)];
    choice.content += d.piece.content;
    choice.reasoning += d.piece.reasoning;
    for (const auto& event : d.piece.calls) choice.parsed.add(event);
    if (!c_.logprobs) return;
    for (const SampledToken& token : d.tokens) {
      if (!choice.logprobs.empty()) choice.logprobs += ',';
      append_logprob(choice.logprobs, *c_.api.model().tokenizer, token);
    }
  }

  void on_finish(int choice, const ChoiceFinish& finish) override {
    choices_[static_cast<size_t>(choice)].finish = finish;
  }

  void on_done(const Usage& usage, const std::optional<Failure>& failure) override {
    if (failure) return c_.api.fail(*c_.exchange, openai_error, error_of(*failure));
    std::string out = fmt::format(R"({{"id":"{}","object":"chat.completion","created":{},"model":)", c_.id, c_.created);
    append_quoted(out, c_.model);
    out += R"(,"choices":[)";
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i) out += ',';
      append_choice(out, static_cast<int>(i), choices_[i]);
    }
    out += R"(],"usage":)" + usage_json(usage) + "}\n";
    c_.exchange->reply(200, "application/json", out);
  }

 private:
  struct Choice {
    std::string content, reasoning, logprobs;
    text::ParsedOutput parsed;  // for the calls
    ChoiceFinish finish;
  };

  void append_choice(std::string& out, int index, const Choice& choice) {
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":{{"role":"assistant","content":)", index);
    const auto& calls = choice.parsed.calls;
    if (choice.content.empty() && !calls.empty())
      out += "null";
    else
      append_quoted(out, choice.content);
    if (!choice.reasoning.empty())
      for (const char* field : {"reasoning_content", "reasoning"}) {
        fmt::format_to(std::back_inserter(out), R"(,"{}":)", field);
        append_quoted(out, choice.reasoning);
      }
    if (!calls.empty()) {
      out += R"(,"tool_calls":[)";
      for (size_t k = 0; k < calls.size(); ++k) {
        fmt::format_to(std::back_inserter(out), R"({}{{"id":"{}","type":"function","function":{{"name":)", k ? "," : "",
                       c_.call_id(index, static_cast<int>(k)));
        append_quoted(out, calls[k].name);
        out += R"(,"arguments":)";
        append_quoted(out, calls[k].arguments);
        out += "}}";
      }
      out += ']';
    }
    out += R"(},"logprobs":)" + (c_.logprobs ? R"({"content":[)" + choice.logprobs + "]}" : std::string("null"));
    fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}"{}}})", name_of(choice.finish.kind),
                   ChatContext::stop_reason(choice.finish));
  }

  ChatContext c_;
  std::vector<Choice> choices_;
};

void chat(Api& api, const std::shared_ptr<Exchange>& exchange) {
  const uint64_t random = api.random();
  api.prepare(exchange, openai_error, [&api, exchange, random]() -> std::function<void()> {
    auto call = std::make_shared<ChatCall>(read_chat(exchange->request(), api, random));
    return [&api, exchange, call] {
      add_warnings(*exchange, call->common.warnings);
      ChatContext context{api, exchange, "chatcmpl-" + api.new_id(), call->common.model, std::time(nullptr)};
      context.logprobs = call->logprobs, context.include_usage = call->common.include_usage;
      context.choices = static_cast<int>(call->request.n);
      std::shared_ptr<TextListener> listener;
      if (call->common.stream)
        listener = std::make_shared<ChatStream>(std::move(context));
      else
        listener = std::make_shared<ChatWhole>(std::move(context));
      api.start(exchange, std::move(call->request), std::move(listener));
    };
  });
}

}  // namespace

std::vector<RouteEntry> chat_routes() {
  return {{"POST", "/v1/chat/completions", chat, "OpenAI's chat completions"}};
}

}  // namespace fathom::serve
