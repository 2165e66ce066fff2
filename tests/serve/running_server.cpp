#include "serve/running_server.h"

#include "engine/speculate_option.h"

namespace fathom::serve::test {

using text::JsonValue;

const LoadedModel& fairy() {
  static const auto model = load_model(FATHOM_SOURCE_DIR "/models/fairy");
  return *model;
}

ServeOptions quiet_options() {
  ServeOptions o;
  o.port = 0;
  o.log_level = "error";
  o.cache_tokens = 8192, o.max_running = 8, o.chunk = 64, o.chunk_beside_decode = 16;
  o.drain_timeout = 5;
  return o;
}

namespace {
/// The same with its draft stages.
const LoadedModel& drafting() {
  static const auto model = load_model(FATHOM_SOURCE_DIR "/models/fairy", LoadOptions{true, {}, {}});
  return *model;
}
}  // namespace

RunningServer::RunningServer(ServeOptions options) {
  EngineOptions e;
  e.speculate = read_speculate(options.speculate);
  const LoadedModel& model = e.speculate == 0 ? fairy() : drafting();
  e.cache_tokens = options.cache_tokens, e.max_sequences = static_cast<int32_t>(options.max_running);
  e.max_context = std::min<int64_t>(2048, options.cache_tokens);
  e.chunk_tokens = options.chunk, e.chunk_beside_decode = options.chunk_beside_decode;
  engine_ = std::make_unique<Engine>(model.config(), model.weights, e);
  backend_ = engine_backend(*engine_, e, fairy().config().vocab_size);
  start(*backend_, options);
}

RunningServer::RunningServer(StubBackend& backend, ServeOptions options) {
  start(backend, options);
}

void RunningServer::start(Backend& backend, const ServeOptions& options) {
  ServerSetup setup;
  setup.options = options;
  setup.version = "test";
  setup.model.tokenizer = &fairy().tokenizer, setup.model.config = &fairy().config();
  static const auto tokens = std::make_shared<const text::TokenTable>(fairy().tokenizer);
  setup.model.tokens = tokens;
  setup.model.names = {"fairy", "other-name"};
  setup.model.created = 1;
  setup.model.default_max_tokens = options.default_max_tokens;
  setup.model.thinking = options.thinking;
  setup.model.official = options.compat == "official";
  server_ = std::make_unique<Server>(setup, backend);
  thread_ = std::thread([this] { server_->run(); });
}

void RunningServer::wait() {
  if (thread_.joinable()) thread_.join();
}

RunningServer::~RunningServer() {
  if (thread_.joinable()) server_->shut_down();
  wait();
}

JsonValue json(const std::string& text) {
  text::JsonReading reading = text::read_json(text);
  EXPECT_TRUE(reading.value) << reading.error << " in " << text;
  return reading.value ? std::move(*reading.value) : JsonValue{};
}

namespace {

const JsonValue* follow(const JsonValue& value, const std::string& path) {
  const JsonValue* v = &value;
  for (size_t at = 0; v && at <= path.size();) {
    const size_t end = std::min(path.find('.', at), path.size());
    const std::string name = path.substr(at, end - at);
    if (v->is(JsonValue::Kind::array)) {
      const size_t index = std::stoul(name);
      v = index < v->items.size() ? &v->items[index] : nullptr;
    } else {
      v = v->find(name);
    }
    at = end + 1;
  }
  return v;
}

}  // namespace

std::string at(const JsonValue& value, const std::string& path) {
  const JsonValue* v = follow(value, path);
  if (!v) {
    ADD_FAILURE() << "no " << path << " in " << text::write_json(value);
    return "";
  }
  return v->is(JsonValue::Kind::string) ? v->text : text::write_json(*v);
}

std::string at(const std::string& text, const std::string& path) {
  return at(json(text), path);
}

bool has(const std::string& text, const std::string& path) {
  const JsonValue value = json(text);
  return follow(value, path) != nullptr;
}

Streamed join_chat(const std::string& body, int choice) {
  Streamed out;
  for (const std::string& event : events_of(body)) {
    EXPECT_FALSE(out.done) << "an event behind [DONE]";
    if (event == "[DONE]") {
      out.done = true;
      continue;
    }
    const JsonValue v = json(event);
    if (v.find("error")) {
      out.error = at(v, "error.message");
      continue;
    }
    const JsonValue* usage = v.find("usage");
    if (usage && usage->is(JsonValue::Kind::object))
      out.completion_tokens = std::stoll(at(v, "usage.completion_tokens"));
    if (v.find("choices")->items.empty() || at(v, "choices.0.index") != std::to_string(choice)) continue;
    const JsonValue& delta = *v.find("choices")->items[0].find("delta");
    ++out.chunks;
    if (const JsonValue* text = delta.find("content")) out.content += text->text;
    if (const JsonValue* text = delta.find("reasoning_content")) {
      out.reasoning += text->text;
      EXPECT_EQ(text->text, at(delta, "reasoning"));
    }
    if (const JsonValue* calls = delta.find("tool_calls"))
      for (const JsonValue& call : calls->items) {
        const JsonValue* function = call.find("function");
        if (const JsonValue* name = function->find("name")) out.call_name += name->text;
        if (const JsonValue* arguments = function->find("arguments"); arguments && !arguments->text.empty())
          out.arguments += arguments->text, ++out.argument_chunks;
      }
    if (const std::string finish = at(v, "choices.0.finish_reason"); finish != "null") {
      EXPECT_EQ(out.finish, "") << "two finish reasons";
      out.finish = finish;
    }
  }
  return out;
}

std::vector<int32_t> ids_of(const std::string& text) {
  return fairy().tokenizer.encode(text, text::AddedTokens::recognise);
}

StubBackend saying(const std::string& text) {
  auto ids = ids_of(text);
  ids.push_back(static_cast<int32_t>(fairy().config().eos_ids[0]));
  return StubBackend([ids](const GenerationRequest& r) {
    auto out = ids;
    if (r.max_tokens > 0 && static_cast<int64_t>(out.size()) > r.max_tokens) out.resize(r.max_tokens);
    return out;
  });
}

}  // namespace fathom::serve::test
