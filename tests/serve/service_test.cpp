// The service's promises: order, one end for each job, refusals, deadlines, failures, shutdown. The engine is a stub.
#include "serve/service.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>

#include "serve/stub_backend.h"

namespace fathom::serve::test {
namespace {

using namespace std::chrono_literals;

/// What all jobs of a test got.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  struct Of {
    bool accepted = false;
    std::vector<int32_t> tokens;
    std::vector<JobEvent> ends;
  };
  std::map<int, Of> jobs;

  Of wait_for_end(int job) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, 20s, [&] { return !jobs[job].ends.empty(); })) << "job " << job;
    return jobs[job];
  }
  void wait_for_tokens(int job, size_t n) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, 20s, [&] { return jobs[job].tokens.size() >= n; })) << "job " << job;
  }
};

struct Recorder final : JobListener {
  Recorder(Record& r, int j) : record(r), job(j) {}
  void on_event(const JobEvent& event) override {
    const std::lock_guard lock(record.mutex);
    Record::Of& of = record.jobs[job];
    EXPECT_TRUE(of.ends.empty()) << "job " << job << ": an event behind the end";
    if (event.kind == JobEvent::Kind::accepted) {
      EXPECT_FALSE(of.accepted);
      of.accepted = true;
    } else if (event.kind == JobEvent::Kind::token) {
      EXPECT_TRUE(of.accepted);
      of.tokens.push_back(event.token.token);
    } else {
      of.ends.push_back(event);
    }
    record.changed.notify_all();
  }
  Record& record;
  int job;
};

Job job(Record& record, int number, int64_t tokens = 10, size_t prompt = 3) {
  Job j;
  j.request.prompt.assign(prompt, 5);
  j.request.max_tokens = tokens;
  j.listener = std::make_shared<Recorder>(record, number);
  return j;
}

void at_once(const std::function<void()>& call) {
  call();
}

std::vector<JobId> accept(Service& service, std::vector<Job> jobs) {
  auto result = service.submit(std::move(jobs));
  EXPECT_TRUE(std::holds_alternative<std::vector<JobId>>(result));
  return std::get<std::vector<JobId>>(result);
}

std::vector<Job> one(Job j) {
  std::vector<Job> jobs;
  jobs.push_back(std::move(j));
  return jobs;
}

TEST(Service, EveryJobGetsItsTokensInOrderAndOneEnd) {
  StubBackend backend;
  Record record;
  Service service(backend, {}, at_once);
  for (int i = 0; i < 30; ++i) accept(service, one(job(record, i, 5 + i)));
  for (int i = 0; i < 30; ++i) {
    const auto got = record.wait_for_end(i);
    GenerationRequest r;
    r.max_tokens = 5 + i;
    EXPECT_EQ(got.tokens, StubBackend::counting(r));
    EXPECT_EQ(got.ends.front().end, EndReason::length);
  }
  EXPECT_EQ(service.snapshot().live, 0);
}

TEST(Service, ARequestThatCanNeverRunIsRejectedAndOthersGoOn) {
  StubBackend backend;
  Record record;
  Service service(backend, {}, at_once);
  accept(service, one(job(record, 1, 3, 5000)));
  accept(service, one(job(record, 2)));
  const auto got = record.wait_for_end(1);
  EXPECT_FALSE(got.accepted);
  EXPECT_EQ(got.ends.front().end, EndReason::rejected);
  EXPECT_EQ(got.ends.front().error, "the prompt does not fit");
  EXPECT_EQ(record.wait_for_end(2).ends.front().end, EndReason::length);
}

TEST(Service, TooManyJobsAreRefusedAtOnceAllOrNoneOfARequest) {
  StubBackend backend(StubBackend::counting, 2);
  backend.paused = true;
  Record record;
  Service service(backend, {3, 16}, at_once);
  for (int i = 0; i < 4; ++i) accept(service, one(job(record, i)));
  std::vector<Job> pair;
  pair.push_back(job(record, 10)), pair.push_back(job(record, 11));
  const auto refused = service.submit(std::move(pair));
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).kind, Refusal::Kind::overloaded);
  EXPECT_GE(std::get<Refusal>(refused).retry_after_s, 1);
  accept(service, one(job(record, 4)));  // the fifth place is still there
  backend.paused = false;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(record.wait_for_end(i).ends.front().end, EndReason::length);
  EXPECT_EQ(record.jobs.count(10), 0u);
}

TEST(Service, CancelEndsAJobWithinOneStepAndFreesItsPlace) {
  StubBackend backend([](const GenerationRequest&) { return std::vector<int32_t>(100000, 7); }, 1);
  backend.step_time = 1ms;
  Record record;
  Service service(backend, {}, at_once);
  const JobId id = accept(service, one(job(record, 1)))[0];
  accept(service, one(job(record, 2)));
  record.wait_for_tokens(1, 3);
  service.cancel(id);
  EXPECT_EQ(record.wait_for_end(1).ends.front().end, EndReason::cancelled);
  record.wait_for_tokens(2, 1);  // its turn has come
  EXPECT_EQ(backend.cancels, 1);
  service.cancel(id), service.cancel(12345);  // unknown by now
}

TEST(Service, ADeadlineEndsAJobThatRunsAndOneThatWaits) {
  StubBackend backend([](const GenerationRequest&) { return std::vector<int32_t>(100000, 7); }, 1);
  backend.step_time = 1ms;
  Record record;
  Service service(backend, {}, at_once);
  for (int i = 0; i < 2; ++i) {
    Job j = job(record, i);
    j.deadline = Clock::now() + (i == 0 ? 150ms : 50ms);  // the one that waits ends while the other runs
    accept(service, one(std::move(j)));
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(record.wait_for_end(i).ends.front().end, EndReason::deadline);
  EXPECT_FALSE(record.jobs[0].tokens.empty());
  EXPECT_TRUE(record.jobs[1].tokens.empty());
}

TEST(Service, ADeadlineEndsAJobThatIsHeldWhileNothingElseRuns) {
  StubBackend backend;
  backend.step_time = 1ms;
  Record record;
  Service service(backend, {}, at_once);
  Job j = job(record, 1, 100000);
  j.deadline = Clock::now() + 100ms;
  const JobId id = accept(service, one(std::move(j)))[0];
  record.wait_for_tokens(1, 1);
  service.hold(id, true);
  EXPECT_EQ(record.wait_for_end(1).ends.front().end, EndReason::deadline);
}

TEST(Service, AHeldJobWaitsAndGoesOnWithoutALoss) {
  StubBackend backend;
  backend.step_time = 500us;
  Record record;
  Service service(backend, {}, at_once);
  const JobId id = accept(service, one(job(record, 1, 300)))[0];
  record.wait_for_tokens(1, 10);
  service.hold(id, true);
  accept(service, one(job(record, 2, 50)));
  record.wait_for_end(2);
  EXPECT_TRUE(record.jobs[1].ends.empty());
  service.hold(id, false);
  GenerationRequest r;
  r.max_tokens = 300;
  EXPECT_EQ(record.wait_for_end(1).tokens, StubBackend::counting(r));
}

TEST(Service, AnEngineThatThrowsFailsLiveJobsAndServesLaterOnes) {
  StubBackend backend;
  backend.step_time = 1ms;
  Record record;
  Service service(backend, {}, at_once);
  accept(service, one(job(record, 1, 100000)));
  accept(service, one(job(record, 2, 100000)));
  record.wait_for_tokens(2, 2);
  backend.fail_next = true;
  for (int i : {1, 2}) {
    const auto got = record.wait_for_end(i);
    EXPECT_EQ(got.ends.front().end, EndReason::failed);
    EXPECT_EQ(got.ends.front().error, "the engine failed: the stub was told to fail");
  }
  accept(service, one(job(record, 3)));
  EXPECT_EQ(record.wait_for_end(3).ends.front().end, EndReason::length);
  EXPECT_EQ(service.snapshot().failures, 1);
}

TEST(Service, EndsAllJobsWhenItIsDestroyed) {
  StubBackend backend;
  backend.step_time = 1ms;
  Record record;
  {
    Service service(backend, {}, at_once);
    for (int i = 0; i < 20; ++i) accept(service, one(job(record, i, 100000)));
    record.wait_for_tokens(0, 1);
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(record.jobs[i].ends.size(), 1u) << i;
    EXPECT_EQ(record.jobs[i].ends.front().end, EndReason::shutdown);
  }
}

TEST(Service, TakesNothingWhenItDrainsAndFinishesWhatItHas) {
  StubBackend backend;
  backend.paused = true;
  Record record;
  Service service(backend, {}, at_once);
  accept(service, one(job(record, 1)));
  service.drain();
  const auto refused = service.submit(one(job(record, 2)));
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).kind, Refusal::Kind::draining);
  backend.paused = false;
  EXPECT_EQ(record.wait_for_end(1).ends.front().end, EndReason::length);
}

TEST(Service, TheEngineWaitsForListenersThatDoNotKeepUp) {
  StubBackend backend;
  Record record;
  std::mutex mutex;
  std::vector<std::function<void()>> calls;  // not taken yet
  Service service(backend, {256, 4}, [&](std::function<void()> call) {
    const std::lock_guard lock(mutex);
    calls.push_back(std::move(call));
  });
  accept(service, one(job(record, 1, 1000)));
  std::this_thread::sleep_for(300ms);
  EXPECT_LE(backend.steps_done, 6);
  while (record.jobs[1].ends.empty()) {
    std::vector<std::function<void()>> now;
    {
      const std::lock_guard lock(mutex);
      now.swap(calls);
    }
    for (auto& call : now) call();
    std::this_thread::yield();
  }
  EXPECT_EQ(record.jobs[1].tokens.size(), 1000u);
}

TEST(Service, AListenerThatThrowsTakesNothingFromOthers) {
  struct Thrower final : JobListener {
    void on_event(const JobEvent&) override { throw std::runtime_error("a bug"); }
  };
  StubBackend backend;
  Record record;
  std::atomic<int> thrown{0};
  Service service(backend, {}, [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::exception&) {
      ++thrown;
    }
  });
  std::vector<Job> jobs;
  jobs.push_back(job(record, 0));
  jobs.front().listener = std::make_shared<Thrower>();
  jobs.push_back(job(record, 1));
  accept(service, std::move(jobs));
  EXPECT_EQ(record.wait_for_end(1).tokens.size(), 10u);
  EXPECT_GT(thrown, 0);
}

TEST(Service, ManyThreadsMaySubmitCancelAndHoldAtOnce) {
  StubBackend backend(StubBackend::counting, 16);
  Record record;
  {
    Service service(backend, {100000, 16}, at_once);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) {
          const JobId id = accept(service, one(job(record, t * 1000 + i, 1 + i % 40)))[0];
          if (i % 3 == 0) service.hold(id, true);
          if (i % 5 == 0) service.cancel(id);
          if (i % 3 == 0) service.hold(id, false);
          service.snapshot();
        }
      });
    for (auto& thread : threads) thread.join();
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 100; ++i) {
        const auto got = record.wait_for_end(t * 1000 + i);
        if (i % 5 != 0) {
          EXPECT_EQ(got.tokens.size(), static_cast<size_t>(1 + i % 40));
        }
      }
    EXPECT_EQ(service.snapshot().live, 0);
  }
}

}  // namespace
}  // namespace fathom::serve::test
