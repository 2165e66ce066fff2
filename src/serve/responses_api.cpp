// /v1/responses: the answers, streamed and whole.
#include <fmt/format.h>

#include <ctime>
#include <iterator>

#include "serve/api.h"
#include "serve/output_blocks.h"
#include "serve/responses_request.h"
#include "text/json.h"

namespace fathom::serve {
namespace {

using Kind = OutputBlock::Kind;
using text::json_quoted;

std::string usage_of(const Usage& u) {
  return fmt::format(
      R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":0}},"output_tokens":{},)"
      R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
      u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens, u.prompt_tokens + u.completion_tokens);
}

/// What an answer knows of its request.
struct ResponseContext {
  Api& api;
  std::shared_ptr<Exchange> exchange;
  std::string id;  // 24 digits; everything in the response is named after it
  std::string model, echo;
  int64_t created = 0;
  bool stream = false;
};

/// The response as an object, and the items of its output. An item is a block.
class ResponseJson {
 public:
  explicit ResponseJson(const ResponseContext& c) : c_(c) {}

  std::string item_id(size_t index, const OutputBlock& block) const {
    const char* kind = block.kind == Kind::thinking ? "rs" : block.kind == Kind::text ? "msg" : "fc";
    return fmt::format("{}_{}_{}", kind, c_.id, index);
  }

  static std::string part(const OutputBlock& block, std::string_view text) {
    if (block.kind == Kind::thinking) return R"({"type":"reasoning_text","text":)" + json_quoted(text) + "}";
    return R"({"type":"output_text","annotations":[],"logprobs":[],"text":)" + json_quoted(text) + "}";
  }

  /// `status`: in_progress (nothing in it yet), completed or incomplete.
  std::string item(size_t index, const OutputBlock& block, std::string_view status) const {
    const bool begun = status != "in_progress";
    std::string out = fmt::format(R"({{"id":"{}","status":"{}",)", item_id(index, block), status);
    switch (block.kind) {
      case Kind::thinking:
        out += R"("type":"reasoning","summary":[],"content":[)" + (begun ? part(block, block.text) : "") + "]}";
        break;
      case Kind::text:
        out += R"("type":"message","role":"assistant","content":[)" + (begun ? part(block, block.text) : "") + "]}";
        break;
      case Kind::call:
        fmt::format_to(std::back_inserter(out),
                       R"("type":"function_call","call_id":"call_{}_{}","name":{},"arguments":{}}})", c_.id, block.call,
                       json_quoted(block.name), json_quoted(begun ? block.text : ""));
        break;
    }
    return out;
  }

  /// `more` says how it ended: incomplete_details, error, usage.
  std::string response(std::string_view status, std::string_view output, std::string_view more) const {
    const std::string completed = status == "completed" ? std::to_string(std::time(nullptr)) : "null";
    return fmt::format(R"({{"id":"resp_{}","object":"response","created_at":{},"status":"{}","completed_at":{},)"
                       R"("model":{},"output":[{}],{},{}}})",
                       c_.id, c_.created, status, completed, json_quoted(c_.model), output, more, c_.echo);
  }

 private:
  const ResponseContext& c_;
};

class ResponseAnswer final : public TextListener, private BlockWriter {
 public:
  explicit ResponseAnswer(ResponseContext context)
      : c_(std::move(context)), json_(c_), blocks_(c_.stream ? this : nullptr) {}

  void on_accepted() override {
    if (!c_.stream) return;
    c_.exchange->add_header("cache-control", "no-cache");
    c_.exchange->add_header("x-accel-buffering", "no");
    c_.exchange->begin(200, "text/event-stream; charset=utf-8");
    const std::string response =
        R"("response":)" + json_.response("in_progress", "", R"("incomplete_details":null,"error":null,"usage":null)");
    send("response.created", response);
    send("response.in_progress", response);
  }

  void on_delta(const ChoiceDelta& d) override { blocks_.add(d.piece); }
  void on_finish(int, const ChoiceFinish& finish) override {
    cut_ = finish.kind == ChoiceFinish::Kind::length;
    blocks_.finish();
  }

  void on_done(const Usage& usage, const std::optional<Failure>& failure) override {
    if (failure && !c_.exchange->begun()) return c_.api.fail(*c_.exchange, openai_error, error_of(*failure));
    std::string output;
    for (size_t i = 0; i < blocks_.all().size(); ++i) {
      if (i) output += ',';
      output += json_.item(i, blocks_.all()[i], failure ? "incomplete" : status_of(i));
    }
    const std::string tokens = R"("usage":)" + usage_of(usage);
    std::string response;
    const char* status = failure ? "failed" : cut_ ? "incomplete" : "completed";
    if (failure) {
      const char* code = failure->reason == EndReason::deadline ? "timeout" : "server_error";
      response = json_.response(status, output,
                                fmt::format(R"("incomplete_details":null,"error":{{"code":"{}","message":{}}},{})",
                                            code, json_quoted(error_of(*failure).what()), tokens));
    } else {
      const char* details = cut_ ? R"({"reason":"max_output_tokens"})" : "null";
      response =
          json_.response(status, output, fmt::format(R"("incomplete_details":{},"error":null,{})", details, tokens));
    }
    if (!c_.stream) return c_.exchange->reply(200, "application/json", response + "\n");
    send(fmt::format("response.{}", status), R"("response":)" + response);
    c_.exchange->end();
  }

 private:
  std::string_view status_of(size_t index) const {
    const OutputBlock& block = blocks_.all()[index];
    return !block.stands || (cut_ && block.kind != Kind::call && index + 1 == blocks_.all().size()) ? "incomplete"
                                                                                                    : "completed";
  }
  /// ,"item_id":...,"output_index":...
  std::string place(size_t index, const OutputBlock& block) const {
    return fmt::format(R"("item_id":"{}","output_index":{})", json_.item_id(index, block), index);
  }
  static const char* delta_type(const OutputBlock& block) {
    return block.kind == Kind::thinking ? "response.reasoning_text"
           : block.kind == Kind::text   ? "response.output_text"
                                        : "response.function_call_arguments";
  }

  void begin(size_t index, const OutputBlock& block) override {
    send("response.output_item.added",
         fmt::format(R"("output_index":{},"item":{})", index, json_.item(index, block, "in_progress")));
    if (block.kind != Kind::call)
      send("response.content_part.added",
           place(index, block) + R"(,"content_index":0,"part":)" + ResponseJson::part(block, ""));
  }

  void piece(size_t index, const OutputBlock& block, std::string_view piece) override {
    std::string more = place(index, block) + R"(,"delta":)" + json_quoted(piece);
    if (block.kind != Kind::call) more += R"(,"content_index":0)";
    if (block.kind == Kind::text) more += R"(,"logprobs":[])";
    send(std::string(delta_type(block)) + ".delta", more);
  }

  void end(size_t index, const OutputBlock& block) override {
    const std::string at = place(index, block), done = std::string(delta_type(block)) + ".done";
    if (block.kind == Kind::call) {
      send(done, at + R"(,"name":)" + json_quoted(block.name) + R"(,"arguments":)" + json_quoted(block.text));
    } else {
      send(done, at + R"(,"content_index":0,"text":)" + json_quoted(block.text) +
                     (block.kind == Kind::text ? R"(,"logprobs":[])" : ""));
      send("response.content_part.done", at + R"(,"content_index":0,"part":)" + ResponseJson::part(block, block.text));
    }
    send("response.output_item.done",
         fmt::format(R"("output_index":{},"item":{})", index, json_.item(index, block, status_of(index))));
  }

  void send(std::string_view type, std::string_view more) {
    c_.exchange->write(
        fmt::format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},{2}}}\n\n", type, sequence_++, more));
  }

  ResponseContext c_;
  ResponseJson json_;
  OutputBlocks blocks_;
  int64_t sequence_ = 0;
  bool cut_ = false;
};

void responses(Api& api, const std::shared_ptr<Exchange>& exchange) {
  const uint64_t random = api.random();
  api.prepare(exchange, openai_error, [&api, exchange, random]() -> std::function<void()> {
    auto call = std::make_shared<ResponsesCall>(read_responses_call(exchange->request(), api, random));
    return [&api, exchange, call] {
      add_warnings(*exchange, call->common.warnings);
      auto listener = std::make_shared<ResponseAnswer>(ResponseContext{
          api, exchange, api.new_id(), call->common.model, call->echo, std::time(nullptr), call->common.stream});
      api.start(exchange, std::move(call->request), std::move(listener));
    };
  });
}

/// What OpenAI has for stored responses.
void stored(Api& api, const std::shared_ptr<Exchange>& exchange) {
  api.fail(*exchange, openai_error,
           ApiError(404, "invalid_request_error", "responses are not stored here: there is none with this id", "",
                    "not_found"));
}

}  // namespace

std::vector<RouteEntry> responses_routes() {
  return {{"POST", "/v1/responses", responses, "OpenAI's responses"},
          {"GET", "/v1/responses/*", stored, "404: responses are not stored"}};
}

}  // namespace fathom::serve
