#include "serve/backend.h"

namespace fathom::serve {
namespace {

class EngineBackend final : public Backend {
 public:
  EngineBackend(Engine& engine, const EngineOptions& options, int64_t vocab)
      : engine_(engine), limits_{engine.max_context(), options.cache_tokens, options.max_sequences, vocab} {}
  const Limits& limits() const override { return limits_; }
  RequestId add(GenerationRequest request) override { return engine_.add(std::move(request)); }
  void cancel(RequestId id) override { engine_.cancel(id); }
  void hold(RequestId id, bool held) override { engine_.hold(id, held); }
  int64_t before(RequestId id) const override { return engine_.before(id); }
  bool step(const std::function<void(const GenerationEvent&)>& report) override { return engine_.step(report); }
  Engine::Stats stats() const override { return engine_.stats(); }
  void set_recorder(Recorder* recorder) override { engine_.set_recorder(recorder); }

 private:
  Engine& engine_;
  Limits limits_;
};

}  // namespace

std::unique_ptr<Backend> engine_backend(Engine& engine, const EngineOptions& options, int64_t vocab) {
  return std::make_unique<EngineBackend>(engine, options, vocab);
}

}  // namespace fathom::serve
