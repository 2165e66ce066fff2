// /v1/messages (Anthropic's API): the answers, streamed and whole, and /v1/messages/count_tokens.
#include <fmt/format.h>

#include <iterator>

#include "serve/api.h"
#include "serve/messages_request.h"
#include "serve/openai_json.h"
#include "serve/output_blocks.h"

namespace fathom::serve {
namespace {

using Kind = OutputBlock::Kind;

/// What both kinds of answers know.
struct MessageContext {
  Api& api;
  std::shared_ptr<Exchange> exchange;
  std::string id;  // of the message
  std::string model;
  int64_t prompt_tokens = 0;
  bool context_limited = false;

  std::string call_id(const OutputBlock& block) const { return fmt::format("toolu_{}_{}", id.substr(4), block.call); }

  /// {"id", "type", "role", "model", "content": CONTENT, then what says how it ended.
  std::string message(std::string_view content, std::string_view end, std::string_view usage) const {
    std::string out = fmt::format(R"({{"id":"{}","type":"message","role":"assistant","model":)", id);
    append_quoted(out, model);
    fmt::format_to(std::back_inserter(out), R"(,"content":[{}],{},"usage":{}}})", content, end, usage);
    return out;
  }

  std::string end(const ChoiceFinish& finish) const {
    const char* reason = "end_turn";
    if (finish.kind == ChoiceFinish::Kind::tool_calls)
      reason = "tool_use";
    else if (finish.kind == ChoiceFinish::Kind::length)
      reason = context_limited ? "model_context_window_exceeded" : "max_tokens";
    else if (!finish.stop_string.empty())
      reason = "stop_sequence";
    std::string out = fmt::format(R"("stop_reason":"{}","stop_sequence":)", reason);
    if (finish.stop_string.empty())
      out += "null";
    else
      append_quoted(out, finish.stop_string);
    return out;
  }
};

/// Anthropic counts cached tokens beside the others.
std::string usage_of(const Usage& u) {
  return fmt::format(
      R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{},)"
      R"("output_tokens_details":{{"thinking_tokens":{}}}}})",
      u.prompt_tokens - u.cached_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens);
}

/// Server-sent events in the order of Anthropic's: the message begins, its blocks follow each other, the message ends.
class MessageStream final : public TextListener, private BlockWriter {
 public:
  explicit MessageStream(MessageContext context) : c_(std::move(context)), blocks_(this) {}

  void on_accepted() override {
    c_.exchange->add_header("cache-control", "no-cache");
    c_.exchange->add_header("x-accel-buffering", "no");
    c_.exchange->begin(200, "text/event-stream; charset=utf-8");
    const Usage usage{.prompt_tokens = c_.prompt_tokens};
    send("message_start",
         R"(,"message":)" + c_.message("", R"("stop_reason":null,"stop_sequence":null)", usage_of(usage)));
    send("ping", "");
  }
  void on_delta(const ChoiceDelta& d) override { blocks_.add(d.piece); }
  void on_finish(int, const ChoiceFinish& finish) override {
    blocks_.finish();
    finish_ = finish;
  }
  void on_done(const Usage& usage, const std::optional<Failure>& failure) override {
    if (failure && !c_.exchange->begun()) return c_.api.fail(*c_.exchange, messages_error, error_of(*failure));
    if (failure) {
      c_.exchange->write("event: error\ndata: " + messages_error(error_of(*failure)) + "\n\n");
    } else {
      send("message_delta", R"(,"delta":{)" + c_.end(finish_) + R"(},"usage":)" + usage_of(usage));
      send("message_stop", "");
    }
    c_.exchange->end();
  }

 private:
  void begin(size_t index, const OutputBlock& block) override {
    std::string more = fmt::format(R"(,"index":{},"content_block":)", index);
    switch (block.kind) {
      case Kind::thinking:
        more += R"({"type":"thinking","thinking":"","signature":""})";
        break;
      case Kind::text:
        more += R"({"type":"text","text":""})";
        break;
      case Kind::call:
        fmt::format_to(std::back_inserter(more), R"({{"type":"tool_use","id":"{}","name":)", c_.call_id(block));
        append_quoted(more, block.name);
        more += R"(,"input":{}})";
        break;
    }
    send("content_block_start", more);
  }
  void piece(size_t index, const OutputBlock& block, std::string_view piece) override {
    std::string more = fmt::format(R"(,"index":{},"delta":)", index);
    more += block.kind == Kind::thinking ? R"({"type":"thinking_delta","thinking":)"
            : block.kind == Kind::text   ? R"({"type":"text_delta","text":)"
                                         : R"({"type":"input_json_delta","partial_json":)";
    append_quoted(more, piece);
    send("content_block_delta", more + "}");
  }
  void end(size_t index, const OutputBlock& block) override {
    // Clients send thinking back only with a signature. Nothing here depends on what it says.
    if (block.kind == Kind::thinking)
      send("content_block_delta",
           fmt::format(R"(,"index":{},"delta":{{"type":"signature_delta","signature":"{}"}})", index, c_.id));
    send("content_block_stop", fmt::format(R"(,"index":{})", index));
  }

  void send(std::string_view type, std::string_view more) {
    c_.exchange->write(fmt::format("event: {0}\ndata: {{\"type\":\"{0}\"{1}}}\n\n", type, more));
  }

  MessageContext c_;
  OutputBlocks blocks_;
  ChoiceFinish finish_;
};

/// One JSON object at the end.
class MessageWhole final : public TextListener {
 public:
  explicit MessageWhole(MessageContext context) : c_(std::move(context)) {}

  void on_delta(const ChoiceDelta& d) override { blocks_.add(d.piece); }
  void on_finish(int, const ChoiceFinish& finish) override {
    blocks_.finish();
    finish_ = finish;
  }
  void on_done(const Usage& usage, const std::optional<Failure>& failure) override {
    if (failure) return c_.api.fail(*c_.exchange, messages_error, error_of(*failure));
    std::string content;
    for (const OutputBlock& block : blocks_.all())
      if (block.stands) append_block(content, block);
    c_.exchange->reply(200, "application/json", c_.message(content, c_.end(finish_), usage_of(usage)) + "\n");
  }

 private:
  void append_block(std::string& out, const OutputBlock& block) const {
    if (!out.empty()) out += ',';
    switch (block.kind) {
      case Kind::thinking:
        out += R"({"type":"thinking","thinking":)";
        append_quoted(out, block.text);
        fmt::format_to(std::back_inserter(out), R"(,"signature":"{}"}})", c_.id);
        break;
      case Kind::text:
        out += R"({"type":"text","text":)";
        append_quoted(out, block.text);
        out += '}';
        break;
      case Kind::call:
        fmt::format_to(std::back_inserter(out), R"({{"type":"tool_use","id":"{}","name":)", c_.call_id(block));
        append_quoted(out, block.name);
        out += R"(,"input":)" + block.text + "}";  // one valid JSON object, since the call stands
        break;
    }
  }

  MessageContext c_;
  OutputBlocks blocks_;
  ChoiceFinish finish_;
};

void messages(Api& api, const std::shared_ptr<Exchange>& exchange) {
  const uint64_t random = api.random();
  api.prepare(exchange, messages_error, [&api, exchange, random]() -> std::function<void()> {
    auto call = std::make_shared<MessagesCall>(read_messages_call(exchange->request(), api, random));
    return [&api, exchange, call] {
      add_warnings(*exchange, call->common.warnings);
      MessageContext context{api, exchange, "msg_" + api.new_id(), call->common.model};
      context.prompt_tokens = static_cast<int64_t>(call->request.prompts.front().size());
      context.context_limited = call->context_limited;
      std::shared_ptr<TextListener> listener;
      if (call->common.stream)
        listener = std::make_shared<MessageStream>(std::move(context));
      else
        listener = std::make_shared<MessageWhole>(std::move(context));
      api.start(exchange, std::move(call->request), std::move(listener));
    };
  });
}

void count_tokens(Api& api, const std::shared_ptr<Exchange>& exchange) {
  api.prepare(exchange, messages_error, [&api, exchange]() -> std::function<void()> {
    std::vector<std::string> warnings;
    const int64_t count = count_messages_tokens(exchange->request(), api, warnings);
    return [exchange, warnings, count] {
      add_warnings(*exchange, warnings);
      exchange->reply(200, "application/json", fmt::format("{{\"input_tokens\":{}}}\n", count));
    };
  });
}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
    case 431:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 408:
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string messages_error(const ApiError& error) {
  std::string out = fmt::format(R"({{"type":"error","error":{{"type":"{}","message":)", error_type(error.status));
  append_quoted(out, error.what());
  return out + "}}";
}

bool is_messages_path(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/");
}

std::vector<RouteEntry> messages_routes() {
  return {{"POST", "/v1/messages", messages, "Anthropic's messages"},
          {"POST", "/v1/messages/count_tokens", count_tokens, "tokens of the prompt that they make"}};
}

}  // namespace fathom::serve
