// The engine: requests in, tokens out. Each step packs one token of every running request and chunks of waiting prompts
// into one batch (continuous batching with chunked prefill).
//
// Requests are taken in order of arrival. One is admitted when the cache can hold its prompt and all tokens it may
// still generate, so a running request never stops for lack of room. Its tokens depend on nothing but the request: the
// ops give the same bits in any batch, and random numbers come from (seed, position).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/step_plan.h"
#include "engine/sampler.h"
#include "model/transformer.h"

namespace fathom {

enum class FinishReason { none, stop, length, cancelled, failed };

/// "stop", "length", ... as the OpenAI API spells them; "cancelled" and "error" are not of that API.
const char* name_of(FinishReason reason);

/// Bounds the thinking: after `tokens` tokens of output without `end_id` the next token is `end_id`, whatever the model
/// says. Off while `end_id` is negative.
struct ThinkingLimit {
  int64_t tokens = 0;
  int32_t end_id = -1;
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  int64_t max_tokens = 0;         // 0: as many as the context allows
  int64_t min_tokens = 0;         // stop ids are not sampled before
  std::vector<int32_t> stop_ids;  // end the request; the id is reported, with FinishReason::stop
  ThinkingLimit thinking;
  bool prompt_logprobs = false;  // report the prompt's tokens too; needs sampling.top_logprobs >= 0
};

using RequestId = int64_t;

/// What step() reports for each request that got a token or ended.
struct GenerationEvent {
  RequestId request = 0;
  SampledToken token;  // token.token is -1 when the request ended without one (cancelled, failed)
  FinishReason finish = FinishReason::none;
  std::string error;  // failed: why, in one line
  /// With the first token, when the request asked for prompt_logprobs: the prompt's tokens from the second on, each
  /// with its log probability behind those before it.
  std::vector<SampledToken> prompt_tokens;
};

struct EngineOptions {
  std::string ops = "cpu";          // "cpu" or "ref"
  int64_t cache_tokens = 16384;     // tokens of all running requests together
  int32_t max_sequences = 8;        // running requests
  int64_t max_context = 0;          // tokens of one request; 0: what the model allows
  int64_t chunk_tokens = 512;       // prompt tokens in one step
  int64_t chunk_beside_decode = 0;  // the same in a step that also decodes, which it holds up; 0: chunk_tokens
};

class Engine {
 public:
  /// `config` and `weights` outlive the engine. Throws Error for an option below 1.
  Engine(const ModelConfig& config, const Weights& weights, const EngineOptions& options, Recorder* recorder = nullptr);

  /// Queues a request. Throws Error when it can never run: empty or too long a prompt, ids outside the vocabulary (in
  /// the prompt or among the stop ids), bad sampling parameters.
  RequestId add(GenerationRequest request);
  /// Ends a request; its last event comes with the next step. Unknown ids are ignored: it may have ended just now.
  void cancel(RequestId id);
  /// A held request keeps its place and its memory, but takes no part in steps. Unknown ids are ignored.
  void hold(RequestId id, bool held);
  /// Spans of the following steps go there; null: nowhere.
  void set_recorder(Recorder* recorder);

  /// Runs one step. False when there was nothing to do. A request whose token cannot be chosen (NaN logits, no token
  /// left) ends alone, with FinishReason::failed. When the model itself throws, nothing has changed and the step may be
  /// tried again. `report` is called when the step's books are closed; it may add and cancel requests. If it throws,
  /// the step's remaining events are lost.
  bool step(const std::function<void(const GenerationEvent&)>& report);
  bool idle() const { return waiting_.empty() && running_.empty(); }

  struct Stats {
    int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0;
    size_t waiting = 0, running = 0;
    Cache::Usage cache{};
  };
  Stats stats() const;
  int64_t max_context() const { return max_context_; }
  const Cache& cache() const { return cache_; }
  Transformer& model() { return model_; }

 private:
  struct Active {
    RequestId id;
    GenerationRequest request;
    SequenceId sequence{};
    std::unique_ptr<Sampler> sampler;
    int64_t fed = 0;  // prompt tokens in the cache
    int64_t generated = 0;
    int32_t next = -1;     // sampled, not yet fed
    int64_t reserved = 0;  // tokens promised to it
    bool cancelled = false, held = false;
    bool thinking = false;                    // request.thinking may still have to end it
    std::vector<SampledToken> prompt_tokens;  // collected for the first event
  };

  void admit();
  void report_cancelled(const std::function<void(const GenerationEvent&)>& report);
  void choose_work(std::vector<SegmentRequest>& segments, std::vector<Active*>& owners);
  int64_t prompt_budget() const;
  void keep_prompt_logprobs(Active& a, View<const float, 2> logits);
  GenerationEvent take_token(Active& a, std::span<const float> logits);
  GenerationEvent take_token_or_fail(Active& a, std::span<const float> logits);
  void remove_finished(const std::vector<RequestId>& finished);

  const ModelConfig& config_;
  EngineOptions options_;
  int64_t max_context_;
  Recorder* recorder_;
  Transformer model_;
  Cache cache_;
  StepPlan plan_;
  std::deque<Active> waiting_;
  std::vector<std::unique_ptr<Active>> running_;
  RequestId next_id_ = 1;
  int64_t promised_ = 0;  // tokens reserved by running requests
  Stats stats_;
};

}  // namespace fathom
