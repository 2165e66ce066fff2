// How many drafts pay: from what steps and proposals cost, how often drafts of each place were right, and how sure the
// draft is of each. Only the speed depends on it, never a token.
//
// With drafts, every round chooses the tokens that its step verifies: the likeliest ones of all requests, as many as
// give the most tokens a second by the costs known so far. Whether rounds of drafts beat steps without is kept for each
// load (1, 2 to 3, 4 to 7, ... requests): where they do not, they are left alone and tried again after a pause.
#pragma once

#include <array>
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

/// A proposal of a request, and how many of its tokens to verify.
struct DraftOffer {
  const Draft* draft = nullptr;
  DraftRecord* record = nullptr;
  int64_t keep = 0;
};

class DraftControl {
 public:
  /// `most`: what the source can propose. `depth`: that many always; negative: as many as pay.
  /// `sizes`: as StepCosts takes them.
  DraftControl(int64_t most, int64_t depth, std::span<const int64_t> sizes = {});

  /// Drafts to ask for, for each of `requests` that decode together; called once a step. 0: make none.
  int64_t depth(int64_t requests);
  /// Sets how many tokens of each proposal of a round are worth verifying when `requests` decode together.
  void choose(std::span<DraftOffer> offers, int64_t requests);

  /// A step of decoding requests alone that fed so many tokens took so long, the choice of tokens included. Steps that
  /// had to be recorded first are not to be told.
  void step_took(int64_t tokens, double seconds) { costs_.took(tokens, seconds); }
  /// A round of so many proposals, at least one, of `depth` tokens took so long. To be told before choose().
  void proposals_took(int64_t proposals, int64_t depth, double seconds);
  /// Whether what drafts need of the tokens of a step is to be kept: not while drafts are off, but early enough before
  /// they are tried again.
  bool keeps_rows() const;
  static constexpr int64_t kWarmUp = 64;     // steps
  static constexpr int64_t kMostDepth = 64;  // of any source
  int64_t most() const { return fixed_ < 0 ? most_ : fixed_; }
  /// Of `draft` the first `accepted` were right, and the next one, if there is one, was not.
  void verified(const Draft& draft, int64_t accepted, DraftRecord& record);

 private:
  /// What is known of drafts at a load.
  struct Load {
    bool met = false, off = false;
    int64_t depth = 0;            // to ask for
    int64_t tries = 0;            // rounds since drafts were taken up
    int64_t idle = 0, pause = 0;  // steps without drafts, and after how many to try them again
    /// Of rounds of late, by depth: logarithm of their rate over that without; mean and mean square.
    std::array<double, kMostDepth + 1> gain{}, square{};
  };
  /// A number of tokens to verify, of drafts cut to some depth, and what comes of it.
  struct Choice {
    int64_t count = 0;
    double rate = 0;  // tokens a second
  };
  Load& load_of(int64_t requests);
  void line_up(std::span<const DraftOffer> offers);
  Choice best_of(int64_t requests, int64_t depth, int64_t most) const;
  double gain_of(int64_t requests, int64_t depth) const;
  int64_t least_of(int64_t requests, int64_t floor) const;
  void judge(Load& load);
  bool measure_without(int64_t requests);
  double calibrated(const Draft& draft, size_t place) const;
  double proposal_seconds(int64_t requests, int64_t depth) const;

  int64_t most_, fixed_;  // fixed_ -1: as many as pay
  StepCosts costs_;
  std::vector<StepCosts> proposal_costs_;  // of rounds, by requests; one for each depth asked for
  struct Place {
    double right = 0, confidence = 0;  // fading sums
  };
  std::vector<Place> places_;
  std::array<Load, 64> loads_{};
  Load* load_ = nullptr;       // the present one
  int64_t kept_ = kWarmUp;     // steps in a row whose rows were kept
  int64_t since_without_ = 0;  // steps since one without drafts was asked for to measure it
  int64_t asked_ = 0;          // depth of the present round
  struct Token {
    double survival;
    int32_t place, offer;
  };
  std::vector<Token> tokens_;  // of a round
};

}  // namespace fathom
