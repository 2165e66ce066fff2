#include "model/rank_threads.h"

#include <chrono>

#include "base/error.h"
#include "model/transformer.h"

namespace fathom {
namespace {

constexpr auto kImpatience = std::chrono::microseconds(1000);  // longer than from one step to the next

/// Runs `work`; what it throws becomes the rank's failure, unless it only reports another rank's.
template <typename Work>
void guarded(dist::Communicator& rank, const Work& work) {
  try {
    work();
  } catch (const dist::Failed&) {
  } catch (const std::exception& e) {
    rank.fail(e.what());
  } catch (...) {
    rank.fail("unknown error");
  }
}

}  // namespace

RankThreads::RankThreads(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                         bool draft_features)
    : patient_(weights.memory->device().shares_host_memory()),
      device_(weights.memory->device()),
      communicators_(dist::connect(weights.devices())),
      workers_(weights.others.size()) {
  if (static_cast<int>(communicators_.size()) != weights.shard.size)
    throw std::logic_error("a rank without the weights of the others");
  pending_ = static_cast<int64_t>(workers_.size()), orders_ = 1;
  try {
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& w = workers_[i];
      w.weights = weights.others[i].get();
      w.thread = std::thread([this, &w, &config, ops, i, draft_features] {
        work(w, *communicators_[i + 1], config, ops, draft_features);
      });
    }
    finish();
  } catch (...) {
    stop();
    throw;
  }
}

RankThreads::~RankThreads() {
  stop();
}

void RankThreads::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ordered_.notify_all();
  for (Worker& w : workers_)
    if (w.thread.joinable()) w.thread.join();
}

void RankThreads::set_layers(int rank, std::span<const LayerCache> layers) {
  workers_.at(static_cast<size_t>(rank) - 1).layers = layers;
}

template <typename Ready>
void RankThreads::wait(std::condition_variable& signal, const Ready& ready) {
  if (!patient_) {
    const auto until = std::chrono::steady_clock::now() + kImpatience;
    while (!ready() && std::chrono::steady_clock::now() < until) {
    }
  }
  std::unique_lock lock(mutex_);
  signal.wait(lock, ready);
}

void RankThreads::work(Worker& worker, dist::Communicator& rank, const ModelConfig& config, const ops::OpTable& ops,
                       bool draft_features) {
  for (int64_t next = 1;; ++next) {
    wait(ordered_, [&] { return ending_ || orders_ >= next; });
    if (ending_) break;
    guarded(rank, [&] {
      if (next > 1) return follow(worker, rank.rank());
      worker.weights->memory->device().bind();
      worker.model.reset(new Transformer(config, *worker.weights, ops, rank, draft_features));
    });
    {
      const std::lock_guard lock(mutex_);
      --pending_;
    }
    done_.notify_all();
  }
  worker.model.reset();
}

void RankThreads::follow(Worker& worker, int rank) {
  if (!batch_) {
    (*work_)(rank, *worker.model, worker.layers);
  } else {
    if (worker.layers.empty()) throw std::logic_error("a rank without a cache");
    worker.model->use_graphs(how_.graphs);
    worker.model->block_.set_dry(how_.dry);
    worker.model->launch(*batch_, worker.layers);
  }
  worker.weights->memory->device().synchronize("running a step");
}

void RankThreads::set_ops(const ops::OpTable& ops) {
  for (Worker& w : workers_) w.model->set_ops(ops);
}

void RankThreads::report(const dist::Failure& f) const {
  fail("rank {} of {}: {}", f.rank, communicators_.size(), f.what);
}

void RankThreads::run(const StepBatch& batch, How how, const std::function<void()>& lead) {
  order(&batch, nullptr, how, lead);
}

void RankThreads::run(const RankWork& work, const std::function<void()>& lead) {
  order(nullptr, &work, {}, lead);
}

void RankThreads::order(const StepBatch* batch, const RankWork* work, How how, const std::function<void()>& lead) {
  if (const auto failure = communicator().failure()) report(*failure);  // it cannot be used again
  {
    const std::lock_guard lock(mutex_);
    batch_ = batch, work_ = work, how_ = how;
    pending_ = static_cast<int64_t>(workers_.size());
    ++orders_;
  }
  ordered_.notify_all();
  guarded(communicator(), lead);
  finish();
}

void RankThreads::finish() {
  wait(done_, [&] { return pending_ == 0; });
  std::optional<dist::Failure> first;
  for (const auto& c : communicators_)
    if (!first) first = c->failure();
  if (!first) return;
  const auto stop = [](ops::ComputeDevice& device) {
    try {
      device.synchronize("stopping");
    } catch (const Error&) {  // what failed is known
    }
  };
  // What any rank has still running may write to the others, until all have stopped.
  stop(device_);
  for (Worker& w : workers_) stop(w.weights->memory->device());
  for (const auto& c : communicators_) c->reset();
  report(*first);
}

}  // namespace fathom
