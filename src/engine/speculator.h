// Speculative decoding: drafts are proposed behind a step, fed and verified in the next one.
//
// Verification is exact by construction. Each token is sampled from the backbone's logits with the random number of its
// position, as without drafts; a draft is right when it is that token, and the logits behind the first wrong one are
// not looked at. So a request's tokens are the same with any drafts and with none, whatever the sampler's options.
// Drafts are drawn with the random number of their position too, which makes them right about as often as rejection
// sampling would (docs/decisions/0007).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "engine/draft_control.h"
#include "engine/scheduler.h"

namespace fathom {

struct SpeculationStats {
  int64_t proposals = 0;
  int64_t offered = 0, accepted = 0;             // drafts verified, and those that were right
  std::vector<int64_t> offered_at, accepted_at;  // the same by place in the proposal
  int64_t refused = 0;                           // ids outside the vocabulary
  int64_t failed = 0;                            // proposals that could not be made: logits that are not numbers
};

/// One line when the drafts cannot be what the checkpoint's makers meant: of many not one was right, or none could be
/// made. Empty otherwise.
std::string draft_fault(const SpeculationStats& stats);

class Speculator {
 public:
  /// `depth`: drafts of a request in one step; negative: as many as pay. `config` and `cache` outlive the object.
  /// `acceptance`: EngineOptions::draft_acceptance; drafts then say of themselves that they are right so often.
  /// `sizes`: numbers of tokens that steps are filled up to; see StepCosts.
  Speculator(std::unique_ptr<DraftSource> source, int64_t depth, const ModelConfig& config, Cache& cache,
             double acceptance = -1, std::span<const int64_t> sizes = {});

  /// Keeps what drafts need of the tokens of a step; nothing while there are no drafts to come.
  void push(const StepBatch& batch, const Activations& out);
  /// The same for drafts that need the token behind each (DraftSource::follow): to be called when those are chosen.
  bool wants_next() const { return source_->wants_next() && keeps_; }
  void follow(const StepBatch& batch, const Activations& out, View<const int32_t, 1> next);
  /// Sets the drafts of those requests that decode next. `requests`: one for each segment of the step's `batch`, null
  /// where it has ended.
  void propose(std::span<Active* const> requests, const StepBatch& batch);
  /// The first `accepted` of a request's drafts were right.
  void verified(Active& a, int64_t accepted);
  /// A step in which all requests decoded fed `tokens` tokens; not one that was recorded meanwhile.
  void step_took(int64_t tokens, double seconds) {
    if (!paused_) control_.step_took(tokens, seconds);
  }
  /// On: no drafts are made, and steps teach nothing of what drafts cost or need.
  void pause(bool on) { paused_ = on; }
  void set_recorder(Recorder* recorder) { source_->set_recorder(recorder); }
  void prepare(int64_t sequences) { source_->prepare(sequences, rings()); }

  const SpeculationStats& stats() const { return stats_; }
  /// Drafts of a request in one step at most.
  int64_t depth() const { return control_.most(); }

 private:
  /// A request that a draft is asked for.
  struct Asked {
    Active* request;
    Sampler sampler;
    std::optional<text::ConstraintMatcher> form;
    std::vector<int32_t> window_rows;
    std::vector<ops::RowSampling> draws;
    DraftStart start;
    bool failed = false;
  };
  Asked ask(Active& a, const ops::Segment& fed, int64_t most) const;
  int32_t choose(Asked& asked, int64_t place, std::span<const float> logits) const;
  void take(Asked& asked, Draft draft);
  std::span<const LayerCache> rings() const;

  std::unique_ptr<DraftSource> source_;
  const ModelConfig& config_;
  Cache& cache_;
  double acceptance_;
  DraftControl control_;
  SpeculationStats stats_;
  bool paused_ = false, keeps_ = false;  // keeps_: rows of the present step
};

}  // namespace fathom
