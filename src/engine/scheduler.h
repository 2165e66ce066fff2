// Which requests run, and what each of them does in the next step.
//
// Turns go round the clients, and each client's requests keep their order (fair_queue.h). Whose turn it is starts when
// the pages that it needs now are there: those of its tokens beyond what the prefix cache has, and of a little growth;
// until then all others wait with it. One whose prompt begins as another's that is being computed waits for that (the
// choices of one request, for example), and holds nobody up. Running ones take pages as they grow. When pages are
// lacking, first what nobody uses goes (prefix_cache.h), then a request gives way: a held one, else the one that
// started last. It goes back before all that have never run, with all its tokens, and what it has computed into the
// prefix cache, from where it goes on later; its user sees nothing but a pause. The one that started first never gives
// way to another, so all come to their end.
//
// A step decodes one token of every running request and feeds at most a chunk of prompt tokens, those of the request
// that started first before others': no prompt, however long, holds the others up by more than one chunk a step.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/step_plan.h"
#include "engine/draft_control.h"
#include "engine/fair_queue.h"
#include "engine/request.h"
#include "text/constrain/constraint.h"

namespace fathom {

/// A request in the engine.
struct Active {
  RequestId id = 0;
  GenerationRequest request;    // without the prompt
  std::vector<int32_t> tokens;  // prompt and output
  int64_t prompt = 0;           // tokens of it
  std::unique_ptr<Sampler> sampler;
  std::optional<text::ConstraintMatcher> form;  // where the output stands in request.constraint
  std::vector<SampledToken> prompt_tokens;      // collected for the first event
  bool thinking = false;                        // request.thinking may still have to end it
  bool cancelled = false, held = false;

  FairQueue::Client* client = nullptr;
  int64_t order = 0;                                // counts the first starts from 1; 0: has not run yet
  std::chrono::steady_clock::time_point started{};  // of the first start
  Draft draft;                                      // to be fed behind the last token, and verified
  std::vector<int32_t> fed;                         // the last token and the draft, while a step feeds them
  DraftRecord drafts;                               // how they have done
  DraftUse use;                                     // what came of them

  bool running = false;
  SequenceId sequence{};  // while running
  int64_t kept = 0;       // tokens of it in the prefix cache
  int64_t computed = -1;  // most tokens that were ever in its sequence, found or fed; -1: has not run yet
  int64_t cached = 0;     // prompt tokens found in the prefix cache when it first ran

  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt; }
  /// While running: nothing but its last token, which was generated, is still to be fed.
  bool decodes(const Cache& cache) const {
    return generated() > 0 && cache.length(sequence) + 1 == static_cast<int64_t>(tokens.size());
  }
};

/// What a step feeds, and to whom.
struct StepWork {
  std::vector<SegmentRequest> segments;
  std::vector<Active*> owners;
};

class Scheduler {
 public:
  Scheduler(Cache& cache, PrefixCache& prefix, const EngineOptions& options);

  void add(std::unique_ptr<Active> request);
  /// Null when there is none: it may have ended.
  Active* find(RequestId id);
  /// Ends all cancelled requests and returns them.
  std::vector<std::unique_ptr<Active>> take_cancelled();
  /// Outputs that must end before a waiting request starts, as things stand; 0: it starts with the next step, if the
  /// pages are there.
  int64_t before(RequestId id) const;

  /// Admits what fits, reserves pages for the next step and says what it is; nothing when all are held. The segments'
  /// tokens stay valid until the requests get more.
  void plan(StepWork& work);
  /// The step is done, and its tokens are the request's: keeps what is complete for others and gives up window rows.
  void fed(Active& a, int64_t tokens);
  /// Ends a running request. A damaged one leaves nothing behind for others.
  void finish(Active& a, bool damaged);

  bool idle() const { return queue_.size() == 0 && running_.empty(); }
  struct Stats {
    size_t waiting = 0, running = 0;
    size_t waiting_clients = 0;  // of requests that have not run yet
    int64_t preemptions = 0;
    int64_t prompt_tokens = 0, recomputed_tokens = 0, cached_tokens = 0;
  };
  Stats stats() const;

 private:
  void admit();
  bool fits(const Active& a) const;
  bool awaits_prefix(const Active& a) const;
  int64_t hit_limit(const Active& a) const;
  PageCount wanted(const Active& a) const;
  void start(std::unique_ptr<Active> a);
  void assume(Active& a);
  Active* held_running();
  void preempt(Active& a);
  std::unique_ptr<Active> stop_running(Active& a);
  bool reserve(Active& a, int64_t tokens);
  int64_t prompt_budget() const;
  bool feed_draft(Active& a);
  void leave_cache(Active& a);

  Cache& cache_;
  PrefixCache& prefix_;
  const EngineOptions& options_;
  FairQueue queue_;
  std::vector<std::unique_ptr<Active>> running_;  // in the order in which they first started
  int64_t starts_ = 0;
  Stats stats_;
};

}  // namespace fathom
