// Where drafts come from: something that proposes the next few tokens of a sequence, cheaply and perhaps wrongly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/activations.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace fathom {

class Recorder;

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
  int32_t token = 0;                     // the last one of the sequence; the cache does not have it yet
  int32_t position = 0;                  // of the token before it, the last one in the cache
  std::span<const int32_t> window_rows;  // of the last min(window, position + 1) positions, oldest first
  int64_t most = 0;                      // tokens wanted at most
};

class DraftSource {
 public:
  /// Chooses a draft from its logits [V]; a negative number ends the proposal before it.
  using Choose = std::function<int32_t(int64_t place, std::span<const float> logits)>;

  virtual ~DraftSource() = default;
  /// Tokens of one proposal at most.
  virtual int64_t depth() const = 0;
  /// Called behind every step of the backbone: keeps what later proposals need of its tokens. `rings`: one a stage,
  /// laid out like the windows of layers.
  virtual void push(const StepBatch& batch, const Activations& out, std::span<const LayerCache> rings) = 0;
  virtual Draft propose(const DraftStart& start, std::span<const LayerCache> rings, const Choose& choose) = 0;
  virtual void set_recorder(Recorder* recorder) = 0;
};

/// Stages of the draft that these weights have and fathom can run on their device; 0: none.
int draft_stages(const Weights& weights);

/// The DSpark draft of the checkpoint; draft_stages() must not be 0. `config` and `weights` outlive it.
std::unique_ptr<DraftSource> dspark_source(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops);

}  // namespace fathom
