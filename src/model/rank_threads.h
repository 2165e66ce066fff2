// The other ranks of a tensor-parallel model: each is a thread with a Transformer of its own on its part of the
// weights, and takes the steps that rank 0 takes.
//
// Rank 0 is the thread of whoever calls Transformer::step(). It plans; the others get the same batch and their own
// twin of the cache. A step ends on all ranks before step() returns, well or not: a rank that fails lets the others out
// of what they wait for, and the step throws once all have stopped. Nothing of it counts then, and the next step starts
// anew.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "dist/communicator.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace fathom {

class Transformer;

class RankThreads {
 public:
  /// `weights`: rank 0's, the others in it. Throws Error when a rank cannot be set up.
  RankThreads(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, bool draft_features);
  ~RankThreads();

  /// Rank 0's.
  dist::Communicator& communicator() { return *communicators_.front(); }
  void set_layers(int rank, std::span<const LayerCache> layers);
  /// How a step runs: recorded and replayed; without sums over the ranks.
  struct How {
    bool graphs = true, dry = false;
  };
  /// One step: `lead` here, the same batch on the other ranks. Throws Error "rank R of N: ..." when one has failed.
  void run(const StepBatch& batch, How how, const std::function<void()>& lead);
  /// `work` on every other rank's thread with its model and cache, `lead` here. Errors as those of a step.
  using RankWork = std::function<void(int rank, Transformer& model, std::span<const LayerCache> layers)>;
  void run(const RankWork& work, const std::function<void()>& lead);
  /// For the following steps.
  void set_ops(const ops::OpTable& ops);

 private:
  struct Worker {
    const Weights* weights = nullptr;
    std::span<const LayerCache> layers;
    std::unique_ptr<Transformer> model;  // made, used and destroyed by the thread
    std::thread thread;
  };

  void work(Worker& worker, dist::Communicator& rank, const ModelConfig& config, const ops::OpTable& ops,
            bool draft_features);
  void follow(Worker& worker, int rank);
  void order(const StepBatch* batch, const RankWork* work, How how, const std::function<void()>& lead);
  /// Waits until `ready`; for a while without giving up the processor where a step is short and its start costs.
  template <typename Ready>
  void wait(std::condition_variable& signal, const Ready& ready);
  /// The others have done what was ordered. Throws Error for the first failure.
  void finish();
  [[noreturn]] void report(const dist::Failure& failure) const;
  void stop() noexcept;

  const bool patient_;  // waiting threads sleep at once
  ops::ComputeDevice& device_;
  std::vector<std::unique_ptr<dist::Communicator>> communicators_;
  std::vector<Worker> workers_;  // ranks 1, 2, ...

  std::mutex mutex_;
  std::condition_variable ordered_, done_;
  std::atomic<int64_t> orders_ = 0;   // given so far; the first is to set up
  std::atomic<int64_t> pending_ = 0;  // workers that have not done the last
  std::atomic<bool> ending_ = false;
  const StepBatch* batch_ = nullptr;  // of a step; null: work_ is to be done
  const RankWork* work_ = nullptr;
  How how_;
};

}  // namespace fathom
