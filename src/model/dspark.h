// The DSpark draft: proposes the next few tokens of sequences from what the backbone's last layers gave. Spec 2.9.
//
// Each stage is an ordinary block of ratio 0 whose window holds projected target features instead of draft KV. push()
// fills those windows for committed tokens; propose() runs the blocks of draft tokens of many sequences in one pass:
// each block's tokens see their sequence's window and each other without a causal mask, and leave nothing behind.
//
// On a device with memory of its own, drafts are drawn there, place behind place, and the host waits once for a whole
// round of proposals; the pass is recorded once for each size and replayed.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "model/block_ops.h"
#include "model/upload_pack.h"

namespace fathom {

class Dspark {
 public:
  /// config.dspark and weights.dspark must be there; both outlive the object. `rank`: of several, whose `weights` these
  /// are; null: the only one.
  Dspark(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
         dist::Communicator* rank = nullptr);

  /// features [T, targets * d] in the device's memory, of committed tokens at `position` [T]; their rows go to `slot`
  /// [T] of each stage's window, none where that is -1. Both are host arrays. stages.size() = number of draft stages.
  /// Does not wait for the device.
  void push(View<const bf16, 2> features, View<const int32_t, 1> position, View<const int32_t, 1> slot,
            std::span<const LayerCache> stages);

  /// What one sequence's proposal starts from: `token` was sampled behind `position`; window_rows names the stages'
  /// rows that it may see, of the last `window` positions up to and including `position`.
  struct Start {
    int32_t token = 0, position = 0;
    std::span<const int32_t> window_rows;
    std::span<const ops::RowSampling> draws;  // of each place, where the device draws; empty: the largest
    int64_t most = 0;                         // drafts wanted at most; no more than block_size are made
  };
  struct Proposal {
    std::vector<int32_t> tokens;          // drafts for the positions behind `token`
    std::vector<float> confidence_logit;  // sigmoid: probability that the draft is accepted if those before it are
  };
  /// Chooses the draft of a sequence at a place of its block from logits [V]. A negative number ends its proposal. Not
  /// called where the device draws.
  using Choose = std::function<int32_t(size_t sequence, int64_t place, std::span<const float> logits)>;

  /// One proposal for each start; a sequence's is the same with any others. All ranks propose at once, with the same
  /// starts and the same `record` (passes may be recorded); rank 0 draws, the others return nothing.
  std::vector<Proposal> propose(std::span<const Start> starts, std::span<const LayerCache> stages, const Choose& choose,
                                bool record = true);

  /// Makes the scratch memory for proposals of up to `sequences` sequences and records their passes, so that later ones
  /// allocate nothing. Does nothing where passes are not recorded.
  void prepare(int64_t sequences, std::span<const LayerCache> stages);

  /// Whether the last pass was of a size not met before, and recorded.
  bool recorded_anew() const { return recorded_anew_; }
  void set_recorder(Recorder* recorder) { block_.set_recorder(recorder, true); }

 private:
  /// A pass: N sequences, blocks of B tokens, P places whose logits are computed.
  struct Pass {
    int64_t sequences = 0, places = 0;
    View<const int32_t, 1> ids, position, slot, window_length, own_length;  // [N * B]
    View<const int32_t, 2> window_index, own_index;                         // [N * B, window], [N * B, B]
    View<const int32_t, 1> rows;                                            // [P * N] tokens, place by place
    View<const int32_t, 1> first;                                           // [N]
    View<const ops::RowSampling, 1> sampling;                               // [P * N]
  };
  struct Recorded {
    int64_t sequences, places;
    const LayerCache* stages;
    std::unique_ptr<ops::DeviceGraph> graph;
  };

  Pass lay_out(std::span<const Start> starts, int64_t sequences, int64_t places);
  void run_blocks(const Pass& pass, std::span<const LayerCache> stages);
  void stage(const BlockWeights& block, const LayerCache& cache, const Pass& pass);
  void markov(int64_t place, int64_t sequences, View<const int32_t, 1> previous, View<float, 1> confidence);
  void draw(const Pass& pass);
  bool leads() const { return !block_.communicator() || block_.communicator()->rank() == 0; }
  void run_recorded(const Pass& pass, std::span<const LayerCache> stages, bool record);
  std::vector<Proposal> choose_on_host(std::span<const Start> starts, const Pass& pass, const Choose& choose);
  std::vector<Proposal> fetch(std::span<const Start> starts, const Pass& pass);

  const DsparkConfig& draft_;
  const DsparkWeights& weights_;
  View<const bf16, 2> embed_, head_;
  ActivationMemory memory_;
  BlockOps block_;
  UploadPack pushed_, started_;
  ops::DeviceBuffer wide_;     // a push's features, quantised
  ops::DeviceBuffer own_;      // the block tokens' own KV
  ops::DeviceBuffer drafted_;  // tokens [P, N], then confidences [P, N]
  ops::DeviceBuffer fetched_;  // the same in host memory
  std::vector<Recorded> recorded_;
  std::array<int64_t, 3> generation_{};  // of the memory that recorded passes point to
  int64_t own_generation_ = 0;
  bool recorded_anew_ = false;

  std::vector<int32_t> ids_, position_, slot_, window_length_, own_length_, window_index_, own_index_, rows_, first_;
  std::vector<ops::RowSampling> sampling_;
};

}  // namespace fathom
