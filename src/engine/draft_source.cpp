#include "engine/draft_source.h"

#include <cmath>

#include "model/dspark.h"

namespace fathom {
namespace {

class DsparkSource : public DraftSource {
 public:
  DsparkSource(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops)
      : depth_(config.dspark->block_size), dspark_(config, weights, ops) {}

  int64_t depth() const override { return depth_; }

  void push(const StepBatch& batch, const Activations& out, std::span<const LayerCache> rings) override {
    dspark_.push(out.features, batch.position, batch.window_slot, rings);
  }

  Draft propose(const DraftStart& start, std::span<const LayerCache> rings, const Choose& choose) override {
    const auto proposal = dspark_.propose(start.token, start.position, start.window_rows, rings, start.most, choose);
    Draft out;
    out.tokens = proposal.tokens;
    for (float logit : proposal.confidence_logit) out.confidence.push_back(1.0f / (1.0f + std::exp(-logit)));
    return out;
  }

  void set_recorder(Recorder* recorder) override { dspark_.set_recorder(recorder); }

 private:
  int64_t depth_;
  Dspark dspark_;
};

}  // namespace

int draft_stages(const Weights& weights) {
  if (!weights.dspark || !weights.memory->device().shares_host_memory()) return 0;
  return static_cast<int>(weights.dspark->stages.size());
}

std::unique_ptr<DraftSource> dspark_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops) {
  return std::make_unique<DsparkSource>(config, weights, ops);
}

}  // namespace fathom
