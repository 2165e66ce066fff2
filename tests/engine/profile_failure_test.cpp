// A kernel trace that fails in the middle of a profile: what the engine does with it. The processor stands in for the
// GPU.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/model_support.h"
#include "engine/engine_support.h"
#include "ops/kernel_trace.h"

namespace fathom::test {
namespace {

/// Fails in one of its calls, or in none.
class FakeTrace final : public ops::KernelTrace {
 public:
  enum class Call { none, start, pause, resume, stop };
  Call failing = Call::none;
  bool started = false, running = false;
  int resumed = 0, stopped = 0;

  void start() override {
    attempt(Call::start);
    EXPECT_FALSE(started);
    started = running = true;
  }
  void pause() override {
    EXPECT_TRUE(running);
    running = false;  // as the real one, whatever fails
    attempt(Call::pause);
  }
  void resume() override {
    EXPECT_TRUE(started && !running);
    attempt(Call::resume);
    running = true, ++resumed;
  }
  std::vector<ops::KernelRun> stop() override {
    EXPECT_TRUE(started);
    started = running = false, ++stopped;
    attempt(Call::stop);
    ops::KernelRun run;
    run.span.name = run.span.kernel = "kernel", run.span.category = kKernelCategory;
    run.span.start_ns = 1, run.span.end_ns = 2;
    return {run};
  }

 private:
  void attempt(Call call) const {
    if (call == failing) throw Error("CUPTI: no luck");
  }
};

/// The processor, with a kernel trace.
class TracedProcessor final : public ops::ComputeDevice {
 public:
  mutable FakeTrace trace;

  const ops::DeviceInfo& info() const override { return host_->info(); }
  std::string name() const override { return host_->name(); }
  bool shares_host_memory() const override { return true; }
  void* stream() const override { return nullptr; }
  std::byte* allocate(size_t bytes) override { return host_->allocate(bytes); }
  void release(std::byte* data) noexcept override { host_->release(data); }
  std::byte* allocate_host(size_t bytes) override { return host_->allocate_host(bytes); }
  void release_host(std::byte* data) noexcept override { host_->release_host(data); }
  void upload(void* to, const void* from, size_t bytes) override { host_->upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { host_->download(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { host_->copy(to, from, bytes); }
  void zero(void* to, size_t bytes) override { host_->zero(to, bytes); }
  void synchronize(const char*) override {}
  std::unique_ptr<ops::DeviceGraph> capture(const std::function<void()>&) override { return nullptr; }
  ops::KernelTrace* kernel_trace(std::string&) const override { return &trace; }

 private:
  std::shared_ptr<ops::ComputeDevice> host_ = ops::host_device();
};

/// Fairy's weights, said to lie on that device; in an engine.
struct Profiled {
  std::shared_ptr<TracedProcessor> device = std::make_shared<TracedProcessor>();
  Weights weights = [this] {
    Weights w = Fairy::get().weights;
    w.memory = std::make_shared<SizeMemory>(device);
    return w;
  }();
  Engine engine{Fairy::get().checkpoint.config(), weights, options()};

  static EngineOptions options() {
    EngineOptions o;
    o.cache_tokens = 1024, o.max_sequences = 2;
    return o;
  }
  std::vector<int32_t> generate(int64_t tokens = 40) {
    GenerationRequest r;
    r.prompt = {0, 7, 8, 9};
    r.sampling.temperature = 0;
    r.max_tokens = tokens;
    const RequestId id = engine.add(r);
    return run_all(engine)[id].tokens;
  }
};

TEST(ProfileFailure, AProfileThatGoesWellHandsOverItsKernelsAndPauses) {
  Profiled p;
  const auto plain = p.generate();
  Recorder recorder;
  p.engine.set_recorder(&recorder);
  EXPECT_TRUE(p.device->trace.running);
  EXPECT_EQ(p.generate(), plain);
  p.engine.set_recorder(nullptr);
  EXPECT_FALSE(p.device->trace.started);
  EXPECT_EQ(p.device->trace.stopped, 1);
  ASSERT_EQ(recorder.device_spans().size(), 1u);
  EXPECT_EQ(recorder.device_spans()[0].name, "kernel");
  EXPECT_EQ(recorder.cost().problem, "");
  EXPECT_GT(recorder.cost().steps, 0);
}

TEST(ProfileFailure, ATraceThatDoesNotStartLeavesSpansOfOperationsAndSaysWhy) {
  Profiled p;
  const auto plain = p.generate();
  p.device->trace.failing = FakeTrace::Call::start;
  Recorder recorder;
  p.engine.set_recorder(&recorder);
  EXPECT_EQ(p.engine.model().trace_problem(), "CUPTI: no luck");
  EXPECT_EQ(p.generate(), plain);
  p.engine.set_recorder(nullptr);
  EXPECT_EQ(p.device->trace.stopped, 0);
  size_t operations = 0;
  recorder.for_each([&](const SpanRecord& span) { operations += std::string_view(span.name) == "experts"; });
  EXPECT_GT(operations, 0u);
}

TEST(ProfileFailure, ATraceThatDoesNotEndLetsTheRecorderGo) {
  Profiled p;
  const auto plain = p.generate();
  p.device->trace.failing = FakeTrace::Call::stop;
  {
    Recorder recorder;
    p.engine.set_recorder(&recorder);
    p.generate(3);
    p.engine.set_recorder(nullptr);
    EXPECT_EQ(p.engine.model().trace_problem(), "CUPTI: no luck");
    EXPECT_TRUE(recorder.device_spans().empty());
  }
  EXPECT_EQ(p.generate(), plain);  // nothing points to it any more
  p.device->trace.failing = FakeTrace::Call::none;
  Recorder next;
  p.engine.set_recorder(&next);
  EXPECT_EQ(p.engine.model().trace_problem(), "");
  p.generate(3);
  p.engine.set_recorder(nullptr);
  EXPECT_EQ(next.device_spans().size(), 1u);
}

constexpr int64_t kMany = kSanitized ? 30 : 200;  // tokens

/// Turning the records off, or on again, fails between two steps: the steps and what was recorded stay.
TEST(ProfileFailure, ATraceThatFailsBetweenStepsEndsTheProfileAndTheRequestsGoOn) {
  for (const auto call : {FakeTrace::Call::pause, FakeTrace::Call::resume}) {
    Profiled p;
    const auto plain = p.generate(kMany);
    p.device->trace.failing = call;
    {
      Recorder recorder;
      p.engine.set_recorder(&recorder);
      EXPECT_EQ(p.generate(kMany), plain);
      // When records are turned on again depends on what steps take.
      for (int again = 0; again < 20 && p.device->trace.started; ++again) EXPECT_EQ(p.generate(kMany), plain);
      EXPECT_EQ(recorder.cost().problem, "CUPTI: no luck");
      EXPECT_EQ(recorder.device_spans().size(), 1u);
      size_t marks = 0;
      recorder.for_each(
          [&](const SpanRecord& span) { marks += std::string_view(span.name) == "kernel records failed"; });
      EXPECT_EQ(marks, 1u);
      EXPECT_EQ(p.device->trace.stopped, 1);
      EXPECT_FALSE(p.device->trace.started);
    }
    EXPECT_EQ(p.generate(kMany), plain);
  }
}

}  // namespace
}  // namespace fathom::test
