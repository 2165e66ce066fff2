// What requests do to each other on the real engine: a long prompt beside running outputs, more requests than fit.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

using namespace std::chrono_literals;

/// Tokens of all jobs in the order in which they came.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<int, int32_t>> tokens;  // job, token
  std::map<int, EndReason> ends;

  bool wait_for(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 240s, condition);
  }
  std::vector<int32_t> of(int job) {
    std::vector<int32_t> out;
    for (const auto& [j, token] : tokens)
      if (j == job) out.push_back(token);
    return out;
  }
};

struct Listener final : JobListener {
  Listener(Arrivals& a, int j) : arrivals(a), job(j) {}
  void on_event(const JobEvent& event) override {
    const std::lock_guard lock(arrivals.mutex);
    if (event.kind == JobEvent::Kind::token) arrivals.tokens.emplace_back(job, event.token.token);
    if (event.kind == JobEvent::Kind::end) arrivals.ends[job] = event.end;
    arrivals.changed.notify_all();
  }
  Arrivals& arrivals;
  int job;
};

std::vector<Job> job(Arrivals& arrivals, int number, size_t prompt, int64_t tokens) {
  std::vector<Job> out(1);
  for (size_t i = 0; i < prompt; ++i)
    out[0].request.prompt.push_back(static_cast<int32_t>(3 + (static_cast<size_t>(number) * 131 + i * 17) % 1900));
  out[0].request.sampling.seed = static_cast<uint64_t>(number);
  out[0].request.max_tokens = tokens;
  out[0].listener = std::make_shared<Listener>(arrivals, number);
  return out;
}

struct RealEngine {
  explicit RealEngine(EngineOptions o)
      : engine(fairy().config(), fairy().weights, o), backend(engine_backend(engine, o, fairy().config().vocab_size)) {}
  Engine engine;
  std::unique_ptr<Backend> backend;
};

void at_once(const std::function<void()>& call) {
  call();
}

TEST(Fairness, ALongPromptHoldsRunningOutputsForOneChunkAtATime) {
  EngineOptions o;
  o.cache_tokens = 4096, o.chunk_tokens = 256, o.chunk_beside_decode = 16;
  RealEngine real(o);
  Arrivals arrivals;
  Service service(*real.backend, {}, at_once);
  service.submit(job(arrivals, 1, 8, 2000));
  ASSERT_TRUE(arrivals.wait_for([&] { return !arrivals.tokens.empty(); }));
  service.submit(job(arrivals, 2, 800, 1));
  ASSERT_TRUE(arrivals.wait_for([&] { return arrivals.ends.count(2) > 0; }));
  const auto got = arrivals.of(1).size();
  EXPECT_GE(got, 800u / 16) << "the running output must get a token for each chunk of the prompt";
  service.end_all(EndReason::cancelled, "");
}

TEST(Fairness, FiveHundredRequestsOfOneClientDoNotHoldTheSingleOneOfAnother) {
  EngineOptions o;
  o.cache_tokens = 4096, o.max_sequences = 4, o.chunk_tokens = 64;
  RealEngine real(o);
  Arrivals arrivals;
  ServiceOptions options;
  options.max_waiting = 600;
  Service service(*real.backend, options, at_once);
  // The single request comes from the engine's thread, with the first token of the others: no step is in between.
  struct Callback final : JobListener {
    explicit Callback(std::function<void(const JobEvent&)> c) : call(std::move(c)) {}
    void on_event(const JobEvent& event) override { call(event); }
    std::function<void(const JobEvent&)> call;
  };
  size_t ended = 0;  // of the others, when the single one has ended
  auto single = job(arrivals, 1000, 8, 3);
  single[0].request.client = "one";
  single[0].listener =
      std::make_shared<Callback>([&, last = std::make_shared<Listener>(arrivals, 1000)](const auto& e) {
        if (e.kind == JobEvent::Kind::end) ended = arrivals.ends.size();
        last->on_event(e);
      });
  std::vector<Job> jobs;
  for (int i = 0; i < 500; ++i) {
    auto next = job(arrivals, i, 8, 3);
    next[0].request.client = "many";
    jobs.push_back(std::move(next[0]));
  }
  jobs[0].listener = std::make_shared<Callback>([&](const JobEvent& e) {
    if (e.kind == JobEvent::Kind::token && !single.empty()) service.submit(std::exchange(single, {}));
  });
  service.submit(std::move(jobs));
  ASSERT_TRUE(arrivals.wait_for([&] { return arrivals.ends.contains(1000); }));
  EXPECT_LE(ended, 20u) << "of five hundred that came before";
  service.end_all(EndReason::cancelled, "");
}

TEST(Fairness, MoreRequestsThanTheCacheHoldsAllGetTheTokensTheyGetAlone) {
  EngineOptions small, large;
  small.cache_tokens = 512, small.max_sequences = 6, small.chunk_tokens = 64;
  large.cache_tokens = 16384, large.max_sequences = 1, large.chunk_tokens = 512, large.prefix_cache = false;
  Arrivals together, alone;
  {
    RealEngine real(small);
    Service service(*real.backend, {}, at_once);
    for (int i = 0; i < 8; ++i) service.submit(job(together, i, 100, 60));
    ASSERT_TRUE(together.wait_for([&] { return together.ends.size() == 8; }));
  }
  {
    RealEngine real(large);
    Service service(*real.backend, {}, at_once);
    for (int i = 0; i < 8; ++i) service.submit(job(alone, i, 100, 60));
    ASSERT_TRUE(alone.wait_for([&] { return alone.ends.size() == 8; }));
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(together.ends[i], EndReason::length);
    EXPECT_EQ(together.of(i), alone.of(i)) << "job " << i;
  }
}

}  // namespace
}  // namespace fathom::serve::test
