#include "engine/draft_source.h"

#include <cmath>

#include "model/dspark.h"

namespace fathom {
namespace {

class DsparkSource : public DraftSource {
 public:
  DsparkSource(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops)
      : depth_(config.dspark->block_size),
        rings_(static_cast<int>(weights.dspark->stages.size())),
        draws_(!weights.memory->device().shares_host_memory()),
        dspark_(config, weights, ops) {}

  int64_t depth() const override { return depth_; }
  int rings() const override { return rings_; }
  bool draws() const override { return draws_; }

  void push(const StepBatch& batch, const Activations& out, std::span<const LayerCache> rings) override {
    dspark_.push(out.features.rows(0, batch.ids.size[0]), batch.position, batch.window_slot, rings);
  }

  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache> rings,
                             const Choose& choose) override {
    starts_.clear();
    for (const DraftStart& s : starts) starts_.push_back({s.token, s.position, s.window_rows, s.draws, s.most});
    std::vector<Draft> out;
    for (auto& proposal : dspark_.propose(starts_, rings, choose)) {
      Draft& d = out.emplace_back();
      d.tokens = std::move(proposal.tokens);
      for (float logit : proposal.confidence_logit) d.confidence.push_back(1.0f / (1.0f + std::exp(-logit)));
    }
    return out;
  }

  void prepare(int64_t sequences, std::span<const LayerCache> rings) override { dspark_.prepare(sequences, rings); }
  bool first_use() const override { return dspark_.recorded_anew(); }
  void set_recorder(Recorder* recorder) override { dspark_.set_recorder(recorder); }

 private:
  int64_t depth_;
  int rings_;
  bool draws_;
  Dspark dspark_;
  std::vector<Dspark::Start> starts_;
};

}  // namespace

int draft_stages(const Weights& weights) {
  return weights.dspark ? static_cast<int>(weights.dspark->stages.size()) : 0;
}

std::unique_ptr<DraftSource> dspark_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops) {
  return std::make_unique<DsparkSource>(config, weights, ops);
}

}  // namespace fathom
