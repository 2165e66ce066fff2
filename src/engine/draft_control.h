// How many drafts pay: from what steps and proposals cost, how often drafts of each place were right, and how sure the
// draft is of each. Only the speed depends on it, never a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_source.h"
#include "engine/step_costs.h"

namespace fathom {

/// How a request's drafts have done so far, next to what they were expected to do.
struct DraftRecord {
  double expected = 0, accepted = 0;  // tokens; older ones fade
};

class DraftControl {
 public:
  /// `most`: what the source can propose. `depth`: that many always; negative: as many as pay.
  DraftControl(int64_t most, int64_t depth);

  /// Drafts to ask for, for each of `requests` that decode together. 0: make none.
  int64_t depth(int64_t requests);
  /// How many tokens of a proposal are worth verifying when `requests` decode together.
  int64_t worth(const Draft& draft, DraftRecord& record, int64_t requests);

  void step_took(int64_t tokens, double seconds) { costs_.took(tokens, seconds); }
  /// A round of so many proposals, at least one, took so long.
  void proposals_took(int64_t proposals, double seconds) { proposal_costs_.took(proposals, seconds); }
  /// Whether what drafts need of the tokens of a step is to be kept: not while drafts are off, but early enough before
  /// they are tried again.
  bool keeps_rows() const { return fixed_ > 0 || (fixed_ < 0 && (!off_ || pause_ - idle_ <= kWarmUp)); }
  static constexpr int64_t kWarmUp = 64;  // steps
  int64_t most() const { return fixed_ < 0 ? most_ : fixed_; }
  /// Of `draft` the first `accepted` were right, and the next one, if there is one, was not.
  void verified(const Draft& draft, int64_t accepted, DraftRecord& record);

 private:
  void begin_trial();
  void count(int64_t offered, int64_t accepted);
  double calibrated(const Draft& draft, const DraftRecord& record, size_t place) const;
  double tokens_per_second(int64_t requests, int64_t depth) const;
  bool disappoints(int64_t requests) const;
  double marginal_seconds(int64_t requests) const;
  double proposal_seconds(int64_t requests) const { return proposal_costs_.of(requests).value_or(0); }

  int64_t most_, fixed_;
  StepCosts costs_;
  StepCosts proposal_costs_;  // of rounds, by requests
  struct Place {
    double right = 0, tried = 0, confidence = 0;  // fading sums
    /// Probability that the draft is right if those before it are. Unseen places look good, to be tried.
    double share() const { return (right + 2) / (tried + 2.2); }
  };
  std::vector<Place> places_;
  double offered_ = 0, yield_ = 0;  // tokens of a proposal that were verified and right, lately
  int64_t tries_ = 0;               // proposals since drafts were taken up
  int64_t chosen_ = 0;              // depth at the last decision
  int64_t requests_ = 0;            // the load that pause_ belongs to
  bool off_ = false;
  int64_t idle_ = 0, pause_;  // steps without drafts, and after how many to try them again
  int64_t trial_;             // steps of the present trial still to come
};

}  // namespace fathom
