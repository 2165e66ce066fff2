// The service owns the engine: one thread that takes jobs, steps the engine and hands out what each job got.
//
// A job is one sequence to generate. Every accepted job gets `accepted` first, then its tokens, then exactly one `end`,
// whatever happens: a client that leaves, a deadline, an engine that throws, a shutdown. Turns go round the clients
// (the engine's queue); when too many jobs are waiting, submit() refuses at once and says when to come back. A client
// that has nothing here is let in beyond the limit, up to twice as many: nobody can take all places.
//
// Events of one step are delivered together, through one call of the Deliver function: the HTTP server posts that call
// to its own thread. When deliveries pile up there the engine waits, so memory stays bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "serve/backend.h"

namespace fathom::serve {

using Clock = std::chrono::steady_clock;
using JobId = int64_t;

enum class EndReason {
  stop,       // a stop id was generated
  length,     // max_tokens, or the context is full
  cancelled,  // by cancel()
  deadline,   // the job's time is over
  rejected,   // the engine can never run it; nothing was generated
  failed,     // the engine failed
  shutdown,   // the service ended before the job did
};

/// "stop", "length", "abort", ... as metrics and logs call it.
const char* name_of(EndReason reason);

struct JobEvent {
  enum class Kind { accepted, token, end };
  Kind kind = Kind::token;
  SampledToken token;                       // token
  std::vector<SampledToken> prompt_tokens;  // with the first token, when the request asked for prompt_logprobs
  int64_t cached_tokens = 0;                // token: of the prompt, found in the prefix cache
  DraftUse drafts;                          // token: of the job so far
  Clock::time_point started{};              // token: when the engine began with the job
  int64_t before = 0;                       // accepted: outputs that must end before it starts, as things stand
  double wait_s = 0;                // accepted: how long that takes at the pace of late; 0: not known, or no wait
  EndReason end = EndReason::stop;  // end
  std::string error;                // end: why, in one line; empty for stop, length and cancelled
  Clock::time_point at;             // when the engine had it
};

/// Receives the events of one job, on the thread that Deliver runs things on.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void on_event(const JobEvent& event) = 0;
};

struct Job {
  GenerationRequest request;
  std::shared_ptr<JobListener> listener;
  Clock::time_point deadline = Clock::time_point::max();
};

/// Why a submission was not taken.
struct Refusal {
  enum class Kind { overloaded, draining } kind = Kind::overloaded;
  std::string message;
  int retry_after_s = 1;
};

struct ServiceOptions {
  int64_t max_waiting = 256;     // jobs beyond those that can run at once; of new clients as many again
  int64_t max_undelivered = 16;  // steps whose events have not been taken yet; then the engine waits
};

class Service {
 public:
  /// Runs a call on the thread of the listeners, in order.
  using Deliver = std::function<void(std::function<void()>)>;

  /// Starts the thread. `backend` outlives the service.
  Service(Backend& backend, const ServiceOptions& options, Deliver deliver);
  /// Ends all jobs (EndReason::shutdown) and the thread.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // From any thread:

  /// Takes all jobs or none.
  std::variant<std::vector<JobId>, Refusal> submit(std::vector<Job> jobs);
  /// Ends a job within one step. Unknown ids are ignored: it may have ended just now.
  void cancel(JobId id);
  /// Stops generating for a job whose reader is too slow, and goes on with it.
  void hold(JobId id, bool held);
  /// Takes no more jobs; those accepted go on.
  void drain();
  /// Ends all jobs with `reason`.
  void end_all(EndReason reason, const std::string& error);
  /// Runs `call` between two steps on the engine's thread.
  void between_steps(std::function<void(Backend&)> call);
  /// The same before each step while `call` returns true. One at a time: a new one replaces the old.
  void before_each_step(std::function<bool(Backend&)> call);

  struct Snapshot {
    Engine::Stats engine;  // as of the last step
    int64_t live = 0;      // jobs accepted and not ended
    bool draining = false;
    Clock::time_point last_token{};  // when the engine last gave a token
    int64_t failures = 0;            // steps that threw
    std::string last_failure;
    double seconds_a_job = 0;  // between the ends of jobs, recently; 0: not known
  };
  Snapshot snapshot() const;
  const Backend::Limits& limits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::serve
