// A whole server in this process, on the in-box model or on a stub.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "serve/http_client.h"
#include "serve/server.h"
#include "serve/stub_backend.h"
#include "text/json.h"

namespace fathom::serve::test {

/// Loaded once.
const LoadedModel& fairy();

/// Settings for tests: any free port, no log.
ServeOptions quiet_options();

class RunningServer {
 public:
  /// On the in-box model. Chunks are small, so that prompts take several steps.
  explicit RunningServer(ServeOptions options = quiet_options());
  /// On the stub, with the tokenizer of the in-box model.
  explicit RunningServer(StubBackend& backend, ServeOptions options = quiet_options());
  ~RunningServer();

  int port() const { return server_->port(); }
  Server& server() { return *server_; }
  /// Waits until run() has returned.
  void wait();

 private:
  void start(Backend& backend, const ServeOptions& options);
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

/// A JSON value by path: "choices.0.message.content". Fails the test when something on the way is missing.
text::JsonValue json(const std::string& text);
std::string at(const text::JsonValue& value, const std::string& path);
std::string at(const std::string& text, const std::string& path);
/// True when the path leads to something.
bool has(const std::string& text, const std::string& path);

/// What the chunks of a streamed chat say together.
struct Streamed {
  std::string content, reasoning, arguments, call_name, finish, error;
  int64_t chunks = 0, argument_chunks = 0, completion_tokens = -1;
  bool done = false;  // [DONE] came last
};
Streamed join_chat(const std::string& body, int choice = 0);

/// Ids of `text` with added tokens recognised: what a stub has to say.
std::vector<int32_t> ids_of(const std::string& text);

/// A stub that says `text` and then the end token.
StubBackend saying(const std::string& text);

}  // namespace fathom::serve::test
