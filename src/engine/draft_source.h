// Where drafts come from: something that proposes the next few tokens of a sequence, cheaply and perhaps wrongly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/activations.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace fathom {

class Recorder;
class Transformer;

/// Tokens proposed to follow a sequence, each with the probability that it is right if those before it are.
struct Draft {
  std::vector<int32_t> tokens;
  std::vector<float> confidence;

  bool empty() const { return tokens.empty(); }
  size_t size() const { return tokens.size(); }
  /// Keeps the first `n` at most.
  void shorten(int64_t n) {
    tokens.resize(std::min(static_cast<size_t>(n), tokens.size()));
    confidence.resize(tokens.size());
  }
};

/// What a proposal starts from.
struct DraftStart {
  int32_t token = 0;                        // the last one of the sequence; the cache does not have it yet
  int32_t position = 0;                     // of the token before it, the last one in the cache
  int64_t step_row = 0;                     // of that token in the batch of the last step
  int32_t own_row = -1;                     // window row of `position`
  std::span<const int32_t> window_rows;     // those of the last `window` positions that have been pushed, oldest first
  std::span<const ops::RowSampling> draws;  // of each place, for a source that draws by itself
  int64_t most = 0;                         // tokens wanted at most
};

class DraftSource {
 public:
  /// Chooses the draft of a start at a place from its logits [V]; a negative number ends the proposal before it.
  using Choose = std::function<int32_t(size_t start, int64_t place, std::span<const float> logits)>;

  virtual ~DraftSource() = default;
  /// Tokens of one proposal at most.
  virtual int64_t depth() const = 0;
  /// Window rings that it keeps its rows in, one a stage; with any, steps keep the features that stages are fed with.
  virtual int rings() const { return 0; }
  /// Whether it draws by itself, as DraftStart::draws say, and does not ask.
  virtual bool draws() const { return false; }
  /// Called behind steps of the backbone: keeps what later proposals need of their tokens. `rings`: one a stage, laid
  /// out like the windows of layers. Steps may be left out: their rows are then in no window_rows.
  virtual void push(const StepBatch& batch, const Activations& out, std::span<const LayerCache> rings) = 0;
  /// Whether follow() is to be called in place of push().
  virtual bool wants_next() const { return false; }
  /// Called behind a step whose tokens are chosen: `next` [T] is the token that follows each in its sequence; -1 where
  /// it is not known, or the token was fed as a draft and is not part of it.
  virtual void follow(const StepBatch& batch, const Activations& out, View<const int32_t, 1> next,
                      std::span<const LayerCache> rings) {
    static_cast<void>(batch), static_cast<void>(out), static_cast<void>(next), static_cast<void>(rings);
  }
  /// Called once for all sequences, behind a step and its push() or follow(): one draft for each start.
  virtual std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache> rings,
                                     const Choose& choose) = 0;
  /// Makes all memory for proposals of up to `sequences` sequences; see Transformer::prepare().
  virtual void prepare(int64_t sequences, std::span<const LayerCache> rings) {
    static_cast<void>(sequences), static_cast<void>(rings);
  }
  /// Whether the last proposals were recorded on a device meanwhile, so that they took longer than later ones will.
  virtual bool first_use() const { return false; }
  virtual void set_recorder(Recorder* recorder) = 0;
};

/// Stages of the draft that these weights have; 0: none.
int draft_stages(const Weights& weights);

/// The draft of the checkpoint, DSpark or MTP; draft_stages() must not be 0. `config` and `weights` outlive it, and so
/// does `model`, on whose ranks DSpark drafts; null: there is one.
std::unique_ptr<DraftSource> own_drafts(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                                        Transformer* model = nullptr);
std::unique_ptr<DraftSource> dspark_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops,
                                           Transformer* model = nullptr);
std::unique_ptr<DraftSource> mtp_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops);

/// What to tell somebody who asks for `depth` drafts (EngineOptions::speculate) of a model: that it has no drafts, or
/// proposes fewer. Empty where it has as many.
std::string few_drafts(const ModelConfig& config, const CheckpointLayout& layout, int64_t depth);

}  // namespace fathom
