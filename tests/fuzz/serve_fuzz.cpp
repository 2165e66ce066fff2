// libFuzzer target for the requests of the server's APIs. The first byte picks the route, the second what the model
// says; the rest is the body. Whatever comes: one answer, valid JSON, valid UTF-8.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "fuzz/small_tokenizer.h"
#include "serve/api.h"
#include "serve/http_text.h"
#include "serve/options.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace {

using namespace fathom;
using namespace fathom::serve;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

void require_json(std::string_view text) {
  require(text::is_strict_json(text), "an answer is not JSON");
  require(is_valid_utf8(text), "an answer is not UTF-8");
}

/// A whole stream of server-sent events of any of the APIs: "data: JSON" each, after "event: TYPE" where the JSON has a
/// type; its last event says that it is over.
void require_events(std::string_view stream) {
  std::string_view last;
  while (!stream.empty()) {
    const size_t stop = stream.find("\n\n");
    require(stop != stream.npos, "half an event");
    last = stream.substr(0, stop);
    stream.remove_prefix(stop + 2);
    std::string_view type;
    if (last.starts_with("event: ")) {
      type = last.substr(7, last.find('\n') - 7);
      last.remove_prefix(std::min(last.size(), 8 + type.size()));
    }
    require(last.starts_with("data: "), "an event without data");
    last.remove_prefix(6);
    if (last == "[DONE]") continue;
    require_json(last);
    const text::JsonReading event = text::read_json(last);
    const text::JsonValue* said = event.value ? event.value->find("type") : nullptr;
    require(type.empty() || (said && said->kind == text::JsonValue::Kind::string && said->text == type),
            "two types of one event");
    if (!type.empty()) last = type;
  }
  constexpr std::string_view kEnds[] = {
      "[DONE]", "message_stop", "error", "response.completed", "response.incomplete", "response.failed"};
  require(std::ranges::find(kEnds, last) != std::end(kEnds), "a stream without its end");
}

/// Keeps what would be sent.
struct FakeExchange final : Exchange {
  HttpRequest r;
  std::string streamed;
  int code = 0, answers = 0;
  bool is_begun = false, done = false;
  const HttpRequest& request() const override { return r; }
  void add_header(std::string_view name, std::string_view value) override {
    const std::string line = header_line(name, value);
    require(line.find('\n') == line.size() - 1, "a header of two lines");
  }
  void reply(int status, std::string_view type, std::string_view body) override {
    require(!is_begun && !done, "two answers");
    code = status, done = true, ++answers;
    if (type == "application/json") require_json(body.substr(0, body.find_last_not_of('\n') + 1));
  }
  void begin(int status, std::string_view) override {
    require(!is_begun && !done, "a stream begins twice");
    code = status, is_begun = true;
  }
  void write(std::string_view piece) override { streamed += piece; }
  void end() override {
    require(is_begun && !done, "a stream ends that has not begun");
    done = true, ++answers;
    require_events(streamed);
  }
  void abort() override { done = true; }
  void release_body() override {}
  bool open() const override { return !done; }
  bool begun() const override { return is_begun; }
  size_t backlog() const override { return 0; }
  void on_close(std::function<void(bool)>) override {}
  void on_backlog(std::function<void(bool)>) override {}
  int status() const override { return code; }
  uint64_t bytes_sent() const override { return 0; }
};

struct NoBackend final : Backend {
  Limits l{512, 4096, 4, 300};
  const Limits& limits() const override { return l; }
  RequestId add(GenerationRequest) override { return 1; }
  void cancel(RequestId) override {}
  void hold(RequestId, bool) override {}
  bool step(const std::function<void(const GenerationEvent&)>&) override { return false; }
  Engine::Stats stats() const override { return {}; }
  void set_recorder(Recorder*) override {}
};

/// Does everything at once, on this thread; the model says `output`.
struct FakeApi final : Api {
  FakeApi() : tokenizer(text::Tokenizer::from_json(fuzz::small_tokenizer(), "fuzz")) {
    config.vocab_size = 300;
    config.eos_ids = {static_cast<int>(*tokenizer.added_id("<｜end▁of▁sentence｜>"))};
    config.bos_id = static_cast<int>(*tokenizer.added_id("<｜begin▁of▁sentence｜>"));
    m.tokenizer = &tokenizer, m.config = &config, m.names = {"fuzz"};
    m.tokens = std::make_shared<const text::TokenTable>(tokenizer);
  }
  const ApiModel& model() const override { return m; }
  Service& service() override { return engine; }
  void prepare(const std::shared_ptr<Exchange>& e, const ErrorWriter& w,
               std::function<std::function<void()>()> work) override {
    try {
      work()();
    } catch (const ApiError& error) {
      fail(*e, w, error);
    } catch (const Error& error) {
      fail(*e, w, ApiError(400, "invalid_request_error", error.what()));
    }
  }
  void on_worker(std::function<void()> task) override { task(); }
  void start(const std::shared_ptr<Exchange>&, TextRequest r, std::shared_ptr<TextListener> listener) override {
    require(!r.prompts.empty() && r.n >= 1, "a request without a prompt");
    for (const auto& prompt : r.prompts)
      for (const int32_t id : prompt) require(id >= 0 && id < 300, "an id outside the vocabulary");
    listener->on_accepted();
    Usage usage;
    const auto choices = static_cast<int>(r.prompts.size()) * static_cast<int>(r.n);
    for (int c = 0; c < choices; ++c) {
      TextStream stream(tokenizer, r.text);
      for (const unsigned char byte : output) {
        SampledToken token{byte, -1.0f, {{byte, -1.0f}, {299, -2.0f}}};
        listener->on_delta({c, stream.push(byte), {token}, {}});
      }
      listener->on_delta({c, stream.finish(), {}, {}});
      listener->on_finish(c, {});
    }
    listener->on_done(usage, fails ? std::optional<Failure>({EndReason::failed, "told \"so\"\n"}) : std::nullopt);
  }
  void fail(Exchange& e, const ErrorWriter& w, const ApiError& error) override {
    require(error.status >= 400 && error.status < 600, "an error without a status");
    e.reply(error.status, "application/json", w(error));
  }
  std::string new_id() override { return "0123456789abcdef01234567"; }
  uint64_t random() override { return 1; }

  text::Tokenizer tokenizer;
  ModelConfig config;
  ApiModel m;
  NoBackend backend;
  Service engine{backend, {}, [](const std::function<void()>& call) { call(); }};
  std::string output;
  bool fails = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static FakeApi api;
  static const auto routes = [] {
    std::vector<RouteEntry> all;
    for (auto& more : {chat_routes(), completions_routes(), model_routes(), messages_routes(), responses_routes()})
      for (auto& route : more)
        if (std::string_view(route.method) == "POST") all.push_back(route);
    return all;
  }();
  const std::string_view body(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::string path, query;
  split_target(body, path, query);
  auto exchange = std::make_shared<FakeExchange>();
  exchange->r.method = "POST";
  exchange->r.body = body;
  constexpr const char* kOutputs[] = {
      "hello", "\xff\xe2\x82", "", "why</think>because \"so\"",
      "a\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"p\" "
      "string=\"true\">v</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"};
  api.output = kOutputs[data[1] % std::size(kOutputs)];
  api.fails = data[1] >= 200;
  routes[data[0] % routes.size()].route(api, exchange);
  require(exchange->answers == 1, "not exactly one answer");
  return 0;
}
