#include "engine/draft_source.h"

#include <cmath>

#include "model/dspark.h"
#include "model/transformer.h"

namespace fathom {
namespace {

class DsparkSource : public DraftSource {
 public:
  DsparkSource(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, Transformer* model)
      : config_(config),
        depth_(config.dspark->block_size),
        rings_(static_cast<int>(weights.dspark->stages.size())),
        draws_(!weights.memory->device().shares_host_memory()),
        model_(model),
        dsparks_(static_cast<size_t>(model ? weights.shard.size : 1)) {
    if (!model_) {
      dsparks_.front() = std::make_unique<Dspark>(config, weights, ops);
      return;
    }
    model_->on_ranks([&](int rank, Transformer& own, std::span<const LayerCache>) {
      dsparks_[static_cast<size_t>(rank)] = std::make_unique<Dspark>(config, own.weights(), ops, own.rank());
    });
  }
  ~DsparkSource() override {
    if (model_ && dsparks_.size() > 1) give_back();
  }
  DsparkSource(const DsparkSource&) = delete;
  DsparkSource& operator=(const DsparkSource&) = delete;

  int64_t depth() const override { return depth_; }
  int rings() const override { return rings_; }
  bool draws() const override { return draws_; }

  void push(const StepBatch& batch, const Activations& out, std::span<const LayerCache> rings) override {
    on_ranks(rings, [&](Dspark& dspark, std::span<const LayerCache> own, const Activations* act) {
      dspark.push((act ? *act : out).features.rows(0, batch.ids.size[0]), batch.position, batch.window_slot, own);
    });
  }

  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache> rings,
                             const Choose& choose) override {
    starts_.clear();
    for (const DraftStart& s : starts) starts_.push_back({s.token, s.position, s.window_rows, s.draws, s.most});
    std::vector<Dspark::Proposal> proposals;
    on_ranks(rings, [&](Dspark& dspark, std::span<const LayerCache> own, const Activations* act) {
      auto made = dspark.propose(starts_, own, choose, !recorder_);
      if (!act) proposals = std::move(made);
    });
    std::vector<Draft> out;
    for (auto& proposal : proposals) {
      Draft& d = out.emplace_back();
      d.tokens = std::move(proposal.tokens);
      for (float logit : proposal.confidence_logit) d.confidence.push_back(1.0f / (1.0f + std::exp(-logit)));
    }
    return out;
  }

  void prepare(int64_t sequences, std::span<const LayerCache> rings) override {
    on_ranks(rings, [&](Dspark& dspark, std::span<const LayerCache> own, const Activations*) {
      dspark.prepare(sequences, own);
    });
  }
  bool first_use() const override { return dsparks_.front()->recorded_anew(); }
  void set_recorder(Recorder* recorder) override {
    recorder_ = recorder;
    dsparks_.front()->set_recorder(recorder);
  }

 private:
  /// On each rank, with its draft, its rings and what its last step left; rank 0's, whose rings are `rings`, is null.
  template <typename Work>
  void on_ranks(std::span<const LayerCache> rings, const Work& work) {
    if (!model_) return work(*dsparks_.front(), rings, nullptr);
    model_->on_ranks([&](int rank, Transformer& own, std::span<const LayerCache> layers) {
      if (rank == 0) return work(*dsparks_.front(), rings, nullptr);
      work(*dsparks_[static_cast<size_t>(rank)], layers.subspan(static_cast<size_t>(config_.num_layers)),
           &own.activations());
    });
  }
  /// Memory goes back to the devices on the threads that took it.
  void give_back() noexcept {
    try {
      model_->on_ranks(
          [&](int rank, Transformer&, std::span<const LayerCache>) { dsparks_[static_cast<size_t>(rank)].reset(); });
    } catch (const std::exception&) {  // a rank has failed: it goes with this object
    }
  }

  const ModelConfig& config_;
  int64_t depth_;
  int rings_;
  bool draws_;
  Transformer* model_;
  Recorder* recorder_ = nullptr;
  std::vector<std::unique_ptr<Dspark>> dsparks_;  // by rank
  std::vector<Dspark::Start> starts_;
};

}  // namespace

int draft_stages(const Weights& weights) {
  return weights.dspark ? static_cast<int>(weights.dspark->stages.size()) : 0;
}

std::unique_ptr<DraftSource> dspark_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                                           Transformer* model) {
  return std::make_unique<DsparkSource>(config, weights, ops, model);
}

}  // namespace fathom
