// An engine that gives scripted tokens, as fast or as slowly as a test wants, and fails when told to.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "serve/backend.h"

namespace fathom::serve::test {

class StubBackend final : public Backend {
 public:
  using Script = std::function<std::vector<int32_t>(const GenerationRequest&)>;

  explicit StubBackend(Script script = counting, int64_t max_running = 8, int64_t max_context = 4096)
      : script_(std::move(script)), limits_{max_context, 65536, max_running, 2048} {}

  /// Tokens 100, 101, ... up to max_tokens (20 where it says nothing).
  static std::vector<int32_t> counting(const GenerationRequest& r) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < (r.max_tokens > 0 ? r.max_tokens : 20); ++i)
      out.push_back(static_cast<int32_t>(100 + i % 1900));
    return out;
  }

  std::chrono::microseconds step_time{0};
  std::atomic<bool> paused{false};     // step() waits
  std::atomic<bool> fail_next{false};  // the next step throws
  std::atomic<int64_t> cancels{0}, steps_done{0}, alive{0};

  const Limits& limits() const override { return limits_; }

  RequestId add(GenerationRequest request) override {
    if (request.prompt.empty()) fail("the prompt is empty");
    if (static_cast<int64_t>(request.prompt.size()) >= limits_.max_context) fail("the prompt does not fit");
    Active a;
    a.id = next_id_++;
    a.tokens = script_(request);
    a.request = std::move(request);
    queue_.push_back(std::move(a));
    alive = static_cast<int64_t>(queue_.size());
    return next_id_ - 1;
  }
  void cancel(RequestId id) override {
    for (Active& a : queue_)
      if (a.id == id) a.cancelled = true, ++cancels;
  }
  void hold(RequestId id, bool held) override {
    for (Active& a : queue_)
      if (a.id == id) a.held = held;
  }
  void set_recorder(Recorder*) override {}
  int64_t before(RequestId id) const override {
    const auto at = std::find_if(queue_.begin(), queue_.end(), [&](const Active& a) { return a.id == id; });
    return std::max<int64_t>(0, at - queue_.begin() + 1 - limits_.max_running);
  }

  bool step(const std::function<void(const GenerationEvent&)>& report) override {
    while (paused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::erase_if(queue_, [](const Active& a) { return a.cancelled; });
    if (fail_next.exchange(false)) throw std::runtime_error("the stub was told to fail");
    std::vector<GenerationEvent> events;
    int64_t running = 0;
    for (Active& a : queue_) {
      if (++running > limits_.max_running) break;
      if (a.held) continue;
      GenerationEvent e;
      e.request = a.id;
      const auto& r = a.request;
      e.token.token = a.tokens[a.next++];
      if (r.sampling.top_logprobs >= 0) e.token.logprob = -0.5f, e.token.top = {{e.token.token, -0.5f}};
      if (std::find(r.stop_ids.begin(), r.stop_ids.end(), e.token.token) != r.stop_ids.end())
        e.finish = FinishReason::stop;
      else if (a.next == a.tokens.size())
        e.finish = FinishReason::length;
      a.cancelled = e.finish != FinishReason::none;
      ++generated_;
      events.push_back(std::move(e));
    }
    std::erase_if(queue_, [](const Active& a) { return a.cancelled; });
    alive = static_cast<int64_t>(queue_.size());
    if (events.empty()) return false;
    if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
    ++steps_done;
    for (const auto& e : events) report(e);
    return true;
  }
  Engine::Stats stats() const override {
    Engine::Stats s;
    s.steps = steps_done, s.generated_tokens = generated_;
    s.running = static_cast<size_t>(std::min<int64_t>(limits_.max_running, static_cast<int64_t>(queue_.size())));
    s.waiting = queue_.size() - s.running;
    return s;
  }

 private:
  struct Active {
    RequestId id = 0;
    GenerationRequest request;
    std::vector<int32_t> tokens;
    size_t next = 0;
    bool cancelled = false, held = false;
  };
  Script script_;
  Limits limits_;
  std::deque<Active> queue_;
  RequestId next_id_ = 1;
  int64_t generated_ = 0;
};

}  // namespace fathom::serve::test
