// What the APIs share: their view of the server, their errors, their way from a request to an answer.
//
// An API is a set of routes. A route gets the Exchange on the HTTP thread and hands the work that takes long (JSON,
// tokenising) to Api::prepare, which runs it on a worker and comes back to the HTTP thread with what it returned.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/sampler.h"
#include "formats/config.h"
#include "serve/generation.h"
#include "serve/http.h"
#include "text/constrain/constraint.h"
#include "text/tokenizer.h"

namespace fathom::serve {

/// A request that is answered with an error: HTTP status, and the fields of OpenAI's error object.
class ApiError : public Error {
 public:
  ApiError(int status, std::string type, const std::string& message, std::string param = "", std::string code = "",
           int retry_after_s = 0)
      : Error(message),
        status(status),
        type(std::move(type)),
        param(std::move(param)),
        code(std::move(code)),
        retry_after_s(retry_after_s) {}
  int status;
  std::string type, param, code;
  int retry_after_s;  // 0: no Retry-After header
};

/// What the APIs know of the model and its server. Constant while it serves.
struct ApiModel {
  const text::Tokenizer* tokenizer = nullptr;
  std::shared_ptr<const text::TokenTable> tokens;  // of it, for constrained output
  const ModelConfig* config = nullptr;
  std::vector<std::string> names;  // ids it answers to; the first is its own
  int64_t created = 0;             // seconds since 1970
  SamplingParams recommended;
  bool thinking = false;           // think unless the request says otherwise
  bool official = false;           // a request's sampling has no effect in thinking mode, as with DeepSeek's own API
  int64_t default_max_tokens = 0;  // where the request says nothing; 0: what the context leaves
  int64_t max_choices = 128;       // n times prompts of one request
  std::chrono::milliseconds timeout{0};
};

/// How an API writes an error: status and JSON body.
using ErrorWriter = std::function<std::string(const ApiError&)>;

class Api {
 public:
  virtual ~Api() = default;
  virtual const ApiModel& model() const = 0;
  virtual Service& service() = 0;

  /// Runs `work` on the worker, and what it returns on the HTTP thread. Errors either throws are answered through
  /// `writer`.
  virtual void prepare(const std::shared_ptr<Exchange>& exchange, const ErrorWriter& writer,
                       std::function<std::function<void()>()> work) = 0;
  /// Runs `task` on the worker; what it throws is logged. From any thread, as prepare().
  virtual void on_worker(std::function<void()> task) = 0;
  /// Starts the request and ties it to the exchange: a client that leaves cancels it, a slow one holds it. Throws
  /// ApiError (429, 503) when the service refuses it.
  virtual void start(const std::shared_ptr<Exchange>& exchange, TextRequest request,
                     std::shared_ptr<TextListener> listener) = 0;
  /// Answers with the error.
  virtual void fail(Exchange& exchange, const ErrorWriter& writer, const ApiError& error) = 0;
  /// A new name, 24 hexadecimal digits, and a new random number. On the HTTP thread.
  virtual std::string new_id() = 0;
  virtual uint64_t random() = 0;
};

/// {"error": {"message", "type", "param", "code"}}
std::string openai_error(const ApiError& error);

/// {"type": "error", "error": {"type", "message"}}: Anthropic's form, for the paths where its clients ask.
std::string messages_error(const ApiError& error);
bool is_messages_path(std::string_view path);

/// The error that tells of a generation that failed.
ApiError error_of(const Failure& failure);

using Route = std::function<void(Api&, const std::shared_ptr<Exchange>&)>;
struct RouteEntry {
  const char* method;
  const char* path;
  Route route;
  const char* summary;  // for the list of routes
};

/// The routes of each API, one file each.
std::vector<RouteEntry> chat_routes();         // /v1/chat/completions
std::vector<RouteEntry> completions_routes();  // /v1/completions
std::vector<RouteEntry> model_routes();        // /v1/models, /tokenize, /detokenize
std::vector<RouteEntry> messages_routes();     // /v1/messages
std::vector<RouteEntry> responses_routes();    // /v1/responses

}  // namespace fathom::serve
