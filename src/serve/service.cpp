#include "serve/service.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/error.h"

namespace fathom::serve {

const char* name_of(EndReason reason) {
  switch (reason) {
    case EndReason::stop:
      return "stop";
    case EndReason::length:
      return "length";
    case EndReason::cancelled:
      return "abort";
    case EndReason::deadline:
      return "timeout";
    case EndReason::rejected:
      return "rejected";
    case EndReason::failed:
      return "error";
    case EndReason::shutdown:
      return "shutdown";
  }
  return "";
}

namespace {

using Batch = std::vector<std::pair<std::shared_ptr<JobListener>, JobEvent>>;

/// Counts the batches on their way to the listeners. Outlives the service: the last batch may arrive after it.
struct Deliveries {
  std::mutex mutex;
  std::condition_variable taken;
  int64_t open = 0;
};

/// Every listener gets its events, also when another one throws; the first exception goes on to the caller.
void hand_out(const Batch& batch) {
  std::exception_ptr first;
  for (const auto& [listener, event] : batch) {
    try {
      listener->on_event(event);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

/// What other threads want of the engine's thread.
struct Commands {
  std::vector<std::pair<JobId, Job>> jobs;
  std::vector<JobId> cancels;
  std::vector<std::pair<JobId, bool>> holds;
  std::vector<std::function<void(Backend&)>> calls;
  std::optional<std::pair<EndReason, std::string>> end_all;
  bool empty() const { return jobs.empty() && cancels.empty() && holds.empty() && calls.empty() && !end_all; }
};

}  // namespace

struct Service::Impl {
  Impl(Backend& b, const ServiceOptions& o, Deliver d) : backend(b), options(o), deliver(std::move(d)) {}

  struct Live {
    RequestId engine_id;
    std::string client;
    std::shared_ptr<JobListener> listener;
    Clock::time_point deadline;
  };

  void run();
  bool wait_for_work(bool busy, Commands& commands);
  void apply(Commands& commands);
  void add(JobId id, Job job);
  void end(JobId id, EndReason reason, const std::string& error, bool tell_engine);
  void end_everything(EndReason reason, const std::string& error);
  void end_late();
  bool step();
  void take(const GenerationEvent& event);
  void send_batch();
  void publish();
  int retry_after(int64_t over) const;
  std::optional<Refusal> refusal(const std::vector<Job>& jobs) const;

  Backend& backend;
  const ServiceOptions options;
  const Deliver deliver;
  const std::shared_ptr<Deliveries> deliveries = std::make_shared<Deliveries>();

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  Commands inbox;
  bool stopping = false;
  JobId next_id = 1;
  Snapshot shared;
  std::unordered_map<std::string, int64_t> live_of;  // shared.live by client
  std::function<bool(Backend&)> new_hook;
  bool hook_changed = false;

  // Of the engine's thread.
  std::unordered_map<JobId, Live> live;
  std::unordered_map<RequestId, JobId> job_of;
  std::set<std::pair<Clock::time_point, JobId>> deadlines;
  Batch batch;
  std::function<bool(Backend&)> hook;
  Clock::time_point last_end{}, last_token{};
  std::vector<std::string> ended;  // clients of the jobs that did since the last publish()
  int64_t failures = 0;
  std::string last_failure;
  double seconds_a_job = 0;
  std::thread thread;
};

/// Waits until there is something to do and takes the commands. False: the service ends.
bool Service::Impl::wait_for_work(bool busy, Commands& commands) {
  std::unique_lock lock(mutex);
  const auto ready = [&] { return stopping || hook_changed || !inbox.empty(); };
  if (!busy) {
    if (deadlines.empty())
      wake.wait(lock, ready);
    else
      wake.wait_until(lock, deadlines.begin()->first, ready);
  }
  commands = std::exchange(inbox, {});
  if (std::exchange(hook_changed, false)) hook = std::move(new_hook);
  return !stopping;
}

void Service::Impl::run() {
  bool busy = false;
  while (true) {
    Commands commands;
    const bool go_on = wait_for_work(busy, commands);
    apply(commands);
    if (!go_on) break;
    end_late();
    busy = step();
    publish();
    send_batch();
  }
  end_everything(EndReason::shutdown, "the server is shutting down");
  publish();
  send_batch();
}

void Service::Impl::apply(Commands& commands) {
  for (auto& [id, job] : commands.jobs) add(id, std::move(job));
  for (const JobId id : commands.cancels) end(id, EndReason::cancelled, "", true);
  for (const auto& [id, held] : commands.holds)
    if (const auto at = live.find(id); at != live.end()) backend.hold(at->second.engine_id, held);
  if (commands.end_all) end_everything(commands.end_all->first, commands.end_all->second);
  for (const auto& call : commands.calls) {
    try {
      call(backend);
    } catch (const std::exception& e) {
      ++failures, last_failure = printable(e.what(), 400);
    }
  }
}

void Service::Impl::add(JobId id, Job job) {
  JobEvent event;
  event.at = Clock::now();
  std::string client = job.request.client;
  try {
    const RequestId engine_id = backend.add(std::move(job.request));
    event.before = backend.before(engine_id);
    event.wait_s = static_cast<double>(event.before) * seconds_a_job;
    live[id] = {engine_id, std::move(client), job.listener, job.deadline};
    job_of[engine_id] = id;
    if (job.deadline != Clock::time_point::max()) deadlines.emplace(job.deadline, id);
    event.kind = JobEvent::Kind::accepted;
  } catch (const std::exception& e) {
    event.kind = JobEvent::Kind::end;
    event.end = dynamic_cast<const Error*>(&e) ? EndReason::rejected : EndReason::failed;
    event.error = e.what();
    ended.push_back(std::move(client));
  }
  batch.emplace_back(std::move(job.listener), std::move(event));
}

/// The one place where a job ends.
void Service::Impl::end(JobId id, EndReason reason, const std::string& error, bool tell_engine) {
  const auto at = live.find(id);
  if (at == live.end()) return;
  JobEvent event;
  event.kind = JobEvent::Kind::end;
  event.end = reason, event.error = error, event.at = Clock::now();
  batch.emplace_back(std::move(at->second.listener), std::move(event));
  if (tell_engine) backend.cancel(at->second.engine_id);
  job_of.erase(at->second.engine_id);
  if (at->second.deadline != Clock::time_point::max()) deadlines.erase({at->second.deadline, id});
  ended.push_back(std::move(at->second.client));
  live.erase(at);
  if (last_end != Clock::time_point{}) {
    const double seconds = std::chrono::duration<double>(event.at - last_end).count();
    seconds_a_job = seconds_a_job == 0 ? seconds : 0.9 * seconds_a_job + 0.1 * seconds;
  }
  last_end = live.empty() ? Clock::time_point{} : event.at;  // time without jobs tells nothing about their length
}

void Service::Impl::end_everything(EndReason reason, const std::string& error) {
  std::vector<JobId> ids;
  for (const auto& [id, job] : live) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const JobId id : ids) end(id, reason, error, true);
}

void Service::Impl::end_late() {
  const auto now = Clock::now();
  while (!deadlines.empty() && deadlines.begin()->first <= now)
    end(deadlines.begin()->second, EndReason::deadline, "the time limit of the request is over", true);
}

/// One step of the engine. False when it had nothing to do.
bool Service::Impl::step() {
  const bool had_jobs = !live.empty();
  try {
    if (hook && had_jobs && !hook(backend)) hook = nullptr;
    return backend.step([this](const GenerationEvent& event) { take(event); });
  } catch (const std::exception& e) {
    ++failures;
    last_failure = dynamic_cast<const std::bad_alloc*>(&e) ? "out of memory" : printable(e.what(), 400);
    end_everything(EndReason::failed, "the engine failed: " + last_failure);
    return had_jobs;  // one more step, so that the engine forgets the jobs
  }
}

void Service::Impl::take(const GenerationEvent& e) {
  const auto known = job_of.find(e.request);
  if (known == job_of.end()) return;  // ended before
  const JobId id = known->second;
  if (e.token.token >= 0) {
    JobEvent event;
    event.token = e.token, event.prompt_tokens = e.prompt_tokens;
    event.cached_tokens = e.cached_tokens;
    event.started = e.started;
    event.drafts = e.drafts;
    event.at = last_token = Clock::now();
    batch.emplace_back(live.at(id).listener, std::move(event));
  }
  switch (e.finish) {
    case FinishReason::none:
      return;
    case FinishReason::stop:
      return end(id, EndReason::stop, "", false);
    case FinishReason::length:
      return end(id, EndReason::length, "", false);
    case FinishReason::cancelled:
      return end(id, EndReason::cancelled, "", false);
    case FinishReason::failed:
      return end(id, EndReason::failed, e.error, false);
  }
}

void Service::Impl::send_batch() {
  if (batch.empty()) return;
  {
    std::unique_lock lock(deliveries->mutex);
    // Wakes up now and then to see whether the service ends: nobody takes deliveries then.
    while (deliveries->open >= options.max_undelivered) {
      deliveries->taken.wait_for(lock, std::chrono::milliseconds(100));
      const std::lock_guard guard(mutex);
      if (stopping) break;
    }
    ++deliveries->open;
  }
  const auto sent = std::make_shared<Batch>(std::exchange(batch, {}));
  deliver([sent, state = deliveries] {
    const auto done = [&] {
      {
        const std::lock_guard lock(state->mutex);
        --state->open;
      }
      state->taken.notify_one();
    };
    try {
      hand_out(*sent);
    } catch (...) {
      done();
      throw;
    }
    done();
  });
}

void Service::Impl::publish() {
  const Engine::Stats stats = backend.stats();
  const std::lock_guard lock(mutex);
  shared.engine = stats;
  shared.live -= static_cast<int64_t>(ended.size());
  for (const std::string& client : std::exchange(ended, {}))
    if (const auto at = live_of.find(client); --at->second == 0) live_of.erase(at);
  shared.last_token = last_token;
  shared.failures = failures, shared.last_failure = last_failure;
  shared.seconds_a_job = seconds_a_job;
}

/// Seconds until `over` more jobs have a place, from the pace at which jobs ended lately.
int Service::Impl::retry_after(int64_t over) const {
  const double pace = shared.seconds_a_job > 0 ? shared.seconds_a_job : 1;
  return static_cast<int>(std::clamp(std::ceil(pace * static_cast<double>(over)), 1.0, 600.0));
}

/// Why these jobs are not taken now. With the mutex held.
std::optional<Refusal> Service::Impl::refusal(const std::vector<Job>& jobs) const {
  if (shared.draining || stopping)
    return Refusal{Refusal::Kind::draining, "the server is shutting down and takes no new requests", 5};
  const int64_t most = backend.limits().max_running + options.max_waiting;
  const auto wanted = static_cast<int64_t>(jobs.size());
  const bool newcomer = !jobs.empty() && !live_of.contains(jobs.front().request.client);
  const int64_t over = shared.live + wanted - (newcomer ? 2 * most : most);
  if (over <= 0 && (!newcomer || wanted <= most)) return std::nullopt;
  const int seconds = retry_after(over);
  return Refusal{Refusal::Kind::overloaded,
                 fmt::format("{} outputs are running or waiting, the limit is {}: try again in about {} s", shared.live,
                             most, seconds),
                 seconds};
}

Service::Service(Backend& backend, const ServiceOptions& options, Deliver deliver)
    : impl_(std::make_unique<Impl>(backend, options, std::move(deliver))) {
  impl_->publish();
  impl_->thread = std::thread([this] { impl_->run(); });
}

Service::~Service() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

std::variant<std::vector<JobId>, Refusal> Service::submit(std::vector<Job> jobs) {
  std::vector<JobId> ids;
  {
    const std::lock_guard lock(impl_->mutex);
    if (auto refusal = impl_->refusal(jobs)) return std::move(*refusal);
    impl_->shared.live += static_cast<int64_t>(jobs.size());
    for (Job& job : jobs) {
      ++impl_->live_of[job.request.client];
      ids.push_back(impl_->next_id++);
      impl_->inbox.jobs.emplace_back(ids.back(), std::move(job));
    }
  }
  impl_->wake.notify_one();
  return ids;
}

void Service::cancel(JobId id) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.cancels.push_back(id);
  }
  impl_->wake.notify_one();
}

void Service::hold(JobId id, bool held) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.holds.emplace_back(id, held);
  }
  impl_->wake.notify_one();
}

void Service::drain() {
  const std::lock_guard lock(impl_->mutex);
  impl_->shared.draining = true;
}

void Service::end_all(EndReason reason, const std::string& error) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.end_all.emplace(reason, error);
  }
  impl_->wake.notify_one();
}

void Service::between_steps(std::function<void(Backend&)> call) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.calls.push_back(std::move(call));
  }
  impl_->wake.notify_one();
}

void Service::before_each_step(std::function<bool(Backend&)> call) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_hook = std::move(call);
    impl_->hook_changed = true;
  }
  impl_->wake.notify_one();
}

Service::Snapshot Service::snapshot() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->shared;
}

const Backend::Limits& Service::limits() const {
  return impl_->backend.limits();
}

}  // namespace fathom::serve
