#include "engine/draft_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/dspark.h"
#include "model/mtp.h"
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

/// One token of the MTP block. It does not say how sure it is: the control learns it from what was right.
class MtpSource : public DraftSource {
 public:
  MtpSource(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops)
      : draws_(!weights.memory->device().shares_host_memory()), mtp_(config, weights, ops) {}

  int64_t depth() const override { return 1; }
  int rings() const override { return 1; }
  bool draws() const override { return draws_; }
  bool wants_next() const override { return true; }
  void push(const StepBatch&, const Activations&, std::span<const LayerCache>) override {}

  void follow(const StepBatch& batch, const Activations& out, View<const int32_t, 1> next,
              std::span<const LayerCache> rings) override {
    ends_.clear();
    for (int64_t i = 0; i < batch.segments.size[0]; ++i) {
      const ops::Segment& s = batch.segments(i);
      int32_t last = -1;
      for (int32_t r = s.first; r < s.first + s.count; ++r)
        if (next(r) >= 0) last = r;
      if (last >= 0) ends_.push_back(last);
    }
    const int64_t tokens = batch.ids.size[0];
    mtp_.push({out.streams.rows(0, tokens), next, batch.position, batch.window_slot,
               View<const int32_t, 1>(ends_.data(), ends_.size())},
              rings[0]);
  }

  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache> rings,
                             const Choose& choose) override {
    std::vector<Draft> out(starts.size());
    std::vector<Mtp::Start> known;
    std::vector<size_t> whose;
    for (size_t i = 0; i < starts.size(); ++i) {
      const DraftStart& s = starts[i];
      const auto end = std::lower_bound(ends_.begin(), ends_.end(), s.step_row);
      if (s.most < 1 || end == ends_.end() || *end != s.step_row) continue;
      known.push_back(
          {end - ends_.begin(), s.token, s.position, s.window_rows, s.draws.empty() ? ops::RowSampling{} : s.draws[0]});
      whose.push_back(i);
    }
    const auto tokens = mtp_.propose(
        known, rings[0], [&](size_t i, std::span<const float> logits) { return choose(whose[i], 0, logits); });
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] >= 0) out[whose[i]] = {{tokens[i]}, {kConfidence}};
    return out;
  }

  void prepare(int64_t sequences, std::span<const LayerCache> rings) override { mtp_.prepare(sequences, rings[0]); }
  void set_recorder(Recorder* recorder) override { mtp_.set_recorder(recorder); }

 private:
  static constexpr float kConfidence = 0.7f;
  bool draws_;
  Mtp mtp_;
  std::vector<int32_t> ends_;  // rows of the last step that proposals may start from
};

}  // namespace

int draft_stages(const Weights& weights) {
  return weights.mtp ? 1 : weights.dspark ? static_cast<int>(weights.dspark->stages.size()) : 0;
}

std::unique_ptr<DraftSource> own_drafts(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                                        Transformer* model) {
  return weights.mtp ? mtp_source(config, weights, ops) : dspark_source(config, weights, ops, model);
}

std::unique_ptr<DraftSource> mtp_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops) {
  return std::make_unique<MtpSource>(config, weights, ops);
}

std::string few_drafts(const ModelConfig& config, const CheckpointLayout& layout, int64_t depth) {
  if (depth == 0) return {};
  if (layout.draft == DraftKind::none) return "this model has no draft stages: it runs without speculation";
  if (layout.draft == DraftKind::mtp && depth > 1)
    return fmt::format("{} drafts in a step: the MTP block of this model drafts one token, so it is one", depth);
  if (layout.draft == DraftKind::dspark && depth > config.dspark->block_size)
    return fmt::format("{} drafts in a step: the DSpark draft of this model proposes {} tokens, so it is {}", depth,
                       config.dspark->block_size, config.dspark->block_size);
  return {};
}

std::unique_ptr<DraftSource> dspark_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                                           Transformer* model) {
  return std::make_unique<DsparkSource>(config, weights, ops, model);
}

}  // namespace fathom
