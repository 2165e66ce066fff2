// The engine: requests in, tokens out. Each step packs one token of every running request and chunks of waiting prompts
// into one batch (continuous batching with chunked prefill).
//
// Turns go round the clients (scheduler.h says who runs when the cache is full). What they compute stays
// for later ones that begin with the same tokens (cache/prefix_cache.h). A request's tokens depend on nothing but
// itself: the ops give the same bits in any batch, in any chunks and after any hit, and random numbers come from (seed,
// position).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/profile_pacer.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/speculator.h"
#include "model/transformer.h"

namespace fathom {

class Engine {
 public:
  /// `config` and `weights` outlive the engine. `drafts`: a source of drafts in place of the checkpoint's own. Throws
  /// Error for an option out of its range, also when drafts are asked for and the weights have none.
  Engine(const ModelConfig& config, const Weights& weights, const EngineOptions& options, Recorder* recorder = nullptr,
         std::unique_ptr<DraftSource> drafts = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request. Throws Error when it can never run: empty or too long a prompt, ids outside the vocabulary (in
  /// the prompt or among the stop ids), bad sampling parameters.
  RequestId add(GenerationRequest request);
  /// Ends a request; its last event comes with the next step. Unknown ids are ignored: it may have ended just now.
  void cancel(RequestId id);
  /// A held request takes no part in steps. It keeps its place, and its memory as long as nobody else needs it; what it
  /// has is never lost. Unknown ids are ignored.
  void hold(RequestId id, bool held);
  /// Spans of the following steps go there; null: nowhere. Where a GPU's kernels are recorded, only so many steps are
  /// that all take hardly longer (profile_pacer.h); Recorder::cost() then says what it cost.
  void set_recorder(Recorder* recorder);

  /// Runs one step. False when there was nothing to do. A request whose token cannot be chosen (NaN logits, no token
  /// left) ends alone, with FinishReason::failed. When the model itself throws, nothing has changed and the step may be
  /// tried again. `report` is called when the step's books are closed; it may add and cancel requests. If it throws,
  /// the step's remaining events are lost.
  bool step(const std::function<void(const GenerationEvent&)>& report);
  bool idle() const { return scheduler_.idle(); }

  struct Stats {
    int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0;  // prompt tokens that were computed, each once
    size_t waiting = 0, running = 0;                             // requests, held ones too
    size_t waiting_clients = 0;                                  // of requests that have not run yet
    Cache::Usage cache{};
    int64_t cached_tokens = 0;      // prompt tokens that were found in the prefix cache instead
    int64_t preemptions = 0;        // times that a request gave way
    int64_t recomputed_tokens = 0;  // tokens fed again after it
    PrefixCache::Stats prefix{};
    SpeculationStats speculation{};  // all zero without
  };
  Stats stats() const;
  /// Outputs that must end before a waiting request starts, as things stand.
  int64_t before(RequestId id) const { return scheduler_.before(id); }
  int64_t max_context() const { return max_context_; }
  /// On: steps make no drafts and drafts learn nothing from them, for steps that are no ordinary work (profiles).
  void pause_drafts(bool on) {
    if (speculator_) speculator_->pause(on);
  }
  bool speculates() const { return speculator_ != nullptr; }
  const Cache& cache() const { return cache_; }
  const PrefixCache& prefix_cache() const { return prefix_; }
  /// Gives up all that no running request uses.
  void clear_prefix_cache() { prefix_.clear(); }
  Transformer& model() { return model_; }

 private:
  void note_skipped();
  void record_steps(bool on);
  void pace_profile(int64_t size, double seconds);
  void check_request(const GenerationRequest& request) const;
  void report_cancelled(const std::function<void(const GenerationEvent&)>& report);
  void take_logits(const StepBatch& batch, const Activations& out, std::vector<GenerationEvent>& events);
  void note_next(const Active& a, const ops::Segment& fed);
  void keep_prompt_logprobs(Active& a, View<const float, 2> logits);
  void verify(Active& a, const Activations& out, int64_t row, int64_t rows, std::vector<GenerationEvent>& events);
  GenerationEvent take_row(Active& a, const Activations& out, int64_t row);
  /// `largest`: the likeliest token if the device has found it, else -1; then `logits` is the row.
  GenerationEvent take_token(Active& a, std::span<const float> logits, int32_t largest);
  GenerationEvent take_token_or_fail(Active& a, std::span<const float> logits, int32_t largest);
  bool forced_right(const Active& a) const;
  bool device_draws(const Active& a) const;
  bool plan_draws();

  const ModelConfig& config_;
  EngineOptions options_;
  int64_t max_context_;
  Recorder* recorder_;                 // of this step; null: it is not recorded
  Recorder* profile_ = nullptr;        // of all that may be
  std::optional<ProfilePacer> pacer_;  // where not every step is recorded
  int64_t skipped_since_ = 0, skipped_ = 0;
  int rings_;  // window rings for the drafts
  Transformer model_;
  Cache cache_;
  PrefixCache prefix_;
  Scheduler scheduler_;
  std::unique_ptr<Speculator> speculator_;  // null: no drafts
  StepPlan plan_;
  std::vector<ops::RowSampling> draws_;  // of the step's rows of logits, where the device draws
  std::vector<uint8_t> drawn_;           // whether it does
  StepWork work_;
  std::vector<int32_t> next_;  // token behind each of the step; -1: none; empty where no draft wants them
  RequestId next_id_ = 1;
  int64_t steps_ = 0, generated_tokens_ = 0;
};

}  // namespace fathom
