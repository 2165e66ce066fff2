// A model in this process as the target: the engine alone, without HTTP.
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "bench/cpu_time.h"
#include "bench/target.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace fathom::bench {
namespace {

using Clock = std::chrono::steady_clock;

class InProcess : public Target {
 public:
  explicit InProcess(const InProcessOptions& o) : options_(o), model_(load_model(o.folder)) {
    const int64_t positions = model_->config().max_positions;
    EngineOptions e;
    e.max_sequences = static_cast<int32_t>(o.most_open);
    e.max_context = std::min(positions, o.most_tokens);
    if (o.most_tokens > positions)
      fail("requests of up to {} tokens: the model has positions for {}", o.most_tokens, positions);
    e.cache_tokens = e.max_context * o.most_open;
    e.chunk_tokens = o.chunk;
    engine_ = std::make_unique<Engine>(model_->config(), model_->weights, e);
  }

  std::string describe() const override { return printable(options_.folder, 400) + ", in this process"; }

  LevelRun run(const LevelPlan& plan, Workload& workload, const LevelProgress& progress) override {
    LevelRun out;
    out.concurrency = static_cast<double>(plan.concurrency), out.rate = plan.rate;
    out.requests.reserve(static_cast<size_t>(plan.requests));
    const double cpu = cpu_time();
    const int64_t steps = engine_->stats().steps;
    const auto start = Clock::now();
    const auto now = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    std::mt19937_64 random(plan.first_index + 1);
    std::exponential_distribution<double> pause(plan.rate > 0 ? plan.rate : 1);
    double due = plan.rate > 0 ? pause(random) : 0;
    std::map<RequestId, size_t> open;
    int64_t sent = 0, ended = 0;
    while (ended < plan.requests && !interrupted()) {
      while (sent < plan.requests &&
             (plan.rate > 0 ? due <= now() : static_cast<int64_t>(open.size()) < plan.concurrency)) {
        send(workload, plan.first_index + static_cast<uint64_t>(sent), plan.rate > 0 ? due : now(), now(), open, out);
        ++sent;
        due += plan.rate > 0 ? pause(random) : 0;
      }
      const bool worked = engine_->step([&](const GenerationEvent& event) {
        const auto at = open.find(event.request);
        if (at == open.end()) return;
        RequestRecord& r = out.requests[at->second];
        if (event.token.token >= 0) r.pieces.push_back(now());
        if (event.finish == FinishReason::none) return;
        r.end = now(), r.finish = name_of(event.finish), r.error = event.error;
        r.output_tokens = static_cast<int64_t>(r.pieces.size());
        open.erase(at);
        progress(++ended);
      });
      if (!worked && plan.rate > 0 && due > now())
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(due - now(), 0.05)));
    }
    out.interrupted = ended < plan.requests;
    for (const auto& [id, index] : open)
      engine_->cancel(id), out.requests[index].error = "interrupted", out.requests[index].end = now();
    while (!engine_->idle()) engine_->step([](const GenerationEvent&) {});
    out.cpu_seconds = cpu_time() - cpu;
    out.steps = engine_->stats().steps - steps;
    return out;
  }

 private:
  void send(Workload& workload, uint64_t index, double due, double sent, std::map<RequestId, size_t>& open,
            LevelRun& out) {
    const Prompt prompt = workload.prompt(index);
    RequestRecord r;
    r.due = due, r.sent = sent;
    GenerationRequest request;
    request.prompt = {model_->config().bos_id};
    model_->tokenizer.encode(prompt.text, text::AddedTokens::as_text, request.prompt);
    request.max_tokens = prompt.max_tokens;
    request.sampling.temperature = static_cast<float>(options_.temperature);
    r.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    workload.calibrate(prompt.text.size(), r.prompt_tokens - 1);
    const RequestId id = engine_->add(std::move(request));
    open.emplace(id, out.requests.size());
    out.requests.push_back(std::move(r));
  }

  InProcessOptions options_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

std::unique_ptr<Target> in_process_target(const InProcessOptions& options) {
  return std::make_unique<InProcess>(options);
}

}  // namespace fathom::bench
