// What every API's request becomes, and the events that its answer is made of.
//
// An API translates its JSON into a TextRequest, starts it with start_generation() and writes what its TextListener is
// told in its own format. Choices, text out of tokens, stop strings, tool calls and usage are done here, once for all
// APIs.
//
// Everything here runs on the thread of the listeners (the HTTP thread).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/text_stream.h"
#include "serve/service.h"
#include "text/tokenizer.h"

namespace fathom::serve {

struct TextRequest {
  std::string id;                             // of the request, for logs
  std::vector<std::vector<int32_t>> prompts;  // token ids; at least one prompt
  int64_t n = 1;                              // outputs for each prompt: choice = prompt * n + k
  SamplingParams sampling;                    // choice k of a prompt draws with seed + k
  int64_t max_tokens = 0;                     // 0: as many as the context allows
  int64_t min_tokens = 0;
  std::vector<int32_t> end_ids;                  // of the model: they end an output and are not shown
  bool ignore_end = false;                       // they do not end it
  std::vector<int32_t> stop_ids;                 // further ids that end an output
  std::shared_ptr<text::Constraint> constraint;  // what every output must look like; null: anything
  ThinkingLimit thinking;                        // closes the thinking after so many tokens
  bool prompt_logprobs = false;                  // sampling.top_logprobs of them for each token of the prompt
  TextOptions text;                              // how tokens become text: chat, thinking, stop strings
  bool one_call = false;                 // tool calls beyond the first are left out (parallel_tool_calls: false)
  std::chrono::milliseconds timeout{0};  // 0: none
  PrefixUse prefix;
  std::string client;  // whose it is: turns go round the clients
  /// Told before the listener is, when the request has to wait: outputs that must end before its first starts, and
  /// about how many seconds that takes (0: not known).
  std::function<void(int64_t before, double seconds)> on_wait;
};

/// Tokens of all choices of a request.
struct Usage {
  int64_t prompt_tokens = 0;  // every prompt counted once, as OpenAI does
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of completion_tokens: up to the end of the thinking
  int64_t cached_tokens = 0;     // of prompt_tokens: found in the prefix cache
  DraftUse drafts;               // speculation
  double seconds = 0;            // first token to last
};

/// How a choice ended.
struct ChoiceFinish {
  enum class Kind { stop, length, tool_calls } kind = Kind::stop;
  std::string stop_string;  // the stop string of the request that ended it, if one did
  int32_t stop_id = -1;     // the stop id that ended it, if it is not an end id of the model
};

/// What a step added to one choice.
struct ChoiceDelta {
  int choice = 0;
  TextPiece piece;  // may be empty while a character or a tag is not complete
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> prompt_tokens;  // with the first token, when asked for
};

/// Why a request ended without its answer.
struct Failure {
  EndReason reason = EndReason::failed;
  std::string message;
};

/// Told in this order: accepted, deltas and finishes of the choices, done (exactly once, the last).
class TextListener {
 public:
  virtual ~TextListener() = default;
  /// Queued: nothing stands in the way any more but time.
  virtual void on_accepted() {}
  virtual void on_delta(const ChoiceDelta& delta) = 0;
  virtual void on_finish(int choice, const ChoiceFinish& finish) = 0;
  /// All choices have finished, or `failure` says why they have not.
  virtual void on_done(const Usage& usage, const std::optional<Failure>& failure) = 0;
};

/// Times and counts of one request, for logs and metrics.
struct GenerationTimes {
  Clock::time_point submitted{}, started{}, first_token{}, last_token{}, done{};  // started: of the first choice
  Usage usage;
  std::string finish;  // of the first choice, or the failure
  int64_t choices = 0, max_tokens = 0;
};

/// A request that is running. Destroying it does not end it; cancel() does.
class Generation {
 public:
  virtual ~Generation() = default;
  /// The client has gone: nothing is told to the listener any more, and generating ends within one step.
  virtual void cancel() = 0;
  /// The client reads too slowly, or reads again.
  virtual void hold(bool held) = 0;
  virtual const GenerationTimes& times() const = 0;
};

/// Told about each token and end, for metrics.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void first_token(double seconds) = 0;
  virtual void next_token(double seconds) = 0;
  virtual void ended(const GenerationTimes& times) = 0;
};

/// The observer may be null; `service`, `tokenizer` and it outlive the generation. Throws Error for bad stop strings.
std::variant<std::shared_ptr<Generation>, Refusal> start_generation(Service& service, const text::Tokenizer& tokenizer,
                                                                    TextRequest request,
                                                                    std::shared_ptr<TextListener> listener,
                                                                    GenerationObserver* observer = nullptr);

}  // namespace fathom::serve
