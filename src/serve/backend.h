// What the service needs of an engine. fathom::Engine is one; tests put others in its place.
#pragma once

#include <functional>
#include <memory>

#include "engine/engine.h"

namespace fathom::serve {

/// All calls come from one thread, the service's; limits() from any.
class Backend {
 public:
  struct Limits {
    int64_t max_context = 0;   // tokens of one request, prompt and output
    int64_t cache_tokens = 0;  // tokens of all running requests
    int64_t max_running = 0;   // requests
    int64_t vocab = 0;
  };
  virtual ~Backend() = default;
  virtual const Limits& limits() const = 0;

  /// As in Engine: add() throws Error when the request can never run.
  virtual RequestId add(GenerationRequest request) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual void hold(RequestId id, bool held) = 0;
  /// Outputs that must end before a waiting request starts, as things stand.
  virtual int64_t before([[maybe_unused]] RequestId id) const { return 0; }
  virtual bool step(const std::function<void(const GenerationEvent&)>& report) = 0;
  virtual Engine::Stats stats() const = 0;
  /// Spans of the following steps go there; null: nowhere.
  virtual void set_recorder(Recorder* recorder) = 0;
};

/// `engine` outlives the backend.
std::unique_ptr<Backend> engine_backend(Engine& engine, const EngineOptions& options, int64_t vocab);

}  // namespace fathom::serve
