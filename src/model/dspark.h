// The DSpark draft: proposes the next few tokens of a sequence from what the backbone's last layers gave. Spec 2.9.
//
// Each stage is an ordinary block of ratio 0 whose window holds projected target features instead of draft KV. push()
// fills those windows for committed tokens; propose() runs the block of draft tokens, which see the window and each
// other without a causal mask and leave nothing behind.
#pragma once

#include <functional>

#include "model/block_ops.h"

namespace fathom {

class Dspark {
 public:
  /// config.dspark and weights.dspark must be there; both outlive the object.
  Dspark(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops);

  /// features [T, targets * d] of committed tokens at `position` [T]; their rows go to `slot` [T] of each stage's
  /// window. stages.size() = number of draft stages.
  void push(View<const bf16, 2> features, View<const int32_t, 1> position, View<const int32_t, 1> slot,
            std::span<const LayerCache> stages);

  struct Proposal {
    std::vector<int32_t> tokens;          // drafts for the positions behind `token`
    std::vector<float> confidence_logit;  // sigmoid: probability that the draft is accepted if those before it are
  };
  /// Chooses a draft from its logits [V]; the place in the block is given too. A negative number ends the proposal.
  using Choose = std::function<int32_t(int64_t place, std::span<const float> logits)>;

  /// `token` was sampled behind `position`; window_rows names the stages' rows of the last min(window, position + 1)
  /// positions up to and including `position`. At most min(most, block_size) drafts.
  Proposal propose(int32_t token, int32_t position, std::span<const int32_t> window_rows,
                   std::span<const LayerCache> stages, int64_t most, const Choose& choose);

  void set_recorder(Recorder* recorder) { block_.set_recorder(recorder, true); }

 private:
  void stage(const BlockWeights& block, const LayerCache& cache, const ops::RowSet& window, View<const int32_t, 1> ids,
             View<const int32_t, 1> position);

  const DsparkConfig& draft_;
  const DsparkWeights& weights_;
  View<const bf16, 2> embed_, head_;
  ActivationMemory memory_;
  BlockOps block_;
  std::vector<std::byte> rows_;  // one page for the block tokens' own KV
  std::vector<int32_t> block_index_, block_slot_, block_length_;
};

}  // namespace fathom
