#include "engine/draft_control.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

constexpr double kFade = 0.99;         // of what a place of the draft did, with each proposal
constexpr double kRecordFade = 0.95;   // of what a request's drafts did
constexpr double kGain = 1.02;         // drafts must promise this much to be made
constexpr int64_t kTrial = 8;          // steps of the first trial
constexpr int64_t kLaterTrial = 4;     // of later ones: what the drafts were worth is remembered
constexpr int64_t kFirstPause = 256;   // steps without drafts before they are tried again
constexpr int64_t kLastPause = 16384;  // the pause grows fourfold up to this
constexpr int64_t kProven = 1000;      // proposals after which drafts are trusted anew
constexpr double kRecordPrior = 8;     // tokens that a request's drafts are taken to have done as expected
constexpr int64_t kMostTries = 400;    // proposals that offered_ and yield_ look back on
constexpr int64_t kFair = 16;          // proposals before drafts may disappoint

}  // namespace

DraftControl::DraftControl(int64_t most, int64_t depth)
    : most_(most),
      fixed_(depth < 0 ? -1 : std::min(depth, most)),
      places_(static_cast<size_t>(most)),
      pause_(kFirstPause),
      trial_(kTrial) {}

double DraftControl::tokens_per_second(int64_t requests, int64_t depth) const {
  const auto n = static_cast<double>(requests);
  const auto step = costs_.of(requests * (1 + depth));
  if (!step) return 0;
  double tokens = 1, survival = 1;
  for (int64_t i = 0; i < depth; ++i) tokens += survival *= places_[static_cast<size_t>(i)].share();
  return n * tokens / (*step + (depth > 0 ? proposal_seconds(requests) : 0));
}

/// Seconds that one more token adds to a step of `requests` requests.
double DraftControl::marginal_seconds(int64_t requests) const {
  const auto without = costs_.of(requests), with = costs_.of(requests * (1 + most_));
  if (!without || !with) return 0;
  return std::max(0.0, (*with - *without) / static_cast<double>(requests * most_));
}

/// What drafts have brought, with all tokens that were not worth verifying, is less than none would have.
bool DraftControl::disappoints(int64_t requests) const {
  if (tries_ < kFair) return false;
  const auto n = static_cast<double>(requests);
  const auto step = costs_.of(std::llround(n * (1 + offered_)));
  const double doubt = 0.5 / std::sqrt(static_cast<double>(std::min(tries_, kMostTries)));
  return !step ||
         n * (1 + yield_) / (*step + proposal_seconds(requests)) < (1 - doubt) * tokens_per_second(requests, 0);
}

int64_t DraftControl::depth(int64_t requests) {
  if (fixed_ >= 0 || requests <= 0) return std::max<int64_t>(0, fixed_);
  if (requests * 2 <= requests_ || requests >= requests_ * 2) {  // another load: what was right may be wrong
    requests_ = requests, pause_ = kFirstPause;
    if (off_) idle_ = std::max(idle_, pause_ - kWarmUp);
  }
  if (off_ && ++idle_ >= pause_) {
    pause_ = std::min(4 * pause_, kLastPause);
    begin_trial();
  }
  if (off_) return 0;
  if (trial_ > 0) return --trial_ % 2 ? most_ : 0;  // in turn, so that the costs of both become known
  int64_t best = 0;
  double rate = tokens_per_second(requests, 0) * kGain;
  for (int64_t k = 1; k <= most_; ++k)
    if (const double r = tokens_per_second(requests, k); r > rate) best = k, rate = r;
  if (disappoints(requests)) best = 0;
  if (best == 0) off_ = true, idle_ = 0;
  if (tries_ > kProven) pause_ = kFirstPause;
  return chosen_ = best;
}

void DraftControl::begin_trial() {
  off_ = false, trial_ = kLaterTrial, tries_ = 0;
}

/// Probability that the draft of a place is right if those before it are: what the draft says of itself, corrected by
/// how right its places and this request's drafts have been.
double DraftControl::calibrated(const Draft& draft, const DraftRecord& record, size_t place) const {
  const Place& p = places_[place];
  const double bias = (p.right + 4) / (p.confidence + 4);
  const double request = (record.accepted + kRecordPrior) / (record.expected + kRecordPrior);
  return std::clamp(double{draft.confidence[place]} * bias * request, 0.0, 1.0);
}

int64_t DraftControl::worth(const Draft& draft, DraftRecord& record, int64_t requests) {
  const auto offered = static_cast<int64_t>(draft.size());
  if (fixed_ >= 0 || trial_ > 0) return offered;
  const double price = marginal_seconds(requests) * tokens_per_second(requests, chosen_);
  double survival = 1;
  int64_t worth = 0;
  for (; worth < offered; ++worth)
    if ((survival *= calibrated(draft, record, static_cast<size_t>(worth))) < price) break;
  if (worth == 0) {  // a request that is not tried any more is forgiven in time
    record.expected *= kRecordFade, record.accepted *= kRecordFade;
    count(0, 0);
  }
  return worth;
}

void DraftControl::count(int64_t offered, int64_t accepted) {
  ++tries_;
  const double weight = 1 / static_cast<double>(std::min(tries_, kMostTries));
  offered_ += weight * (static_cast<double>(offered) - offered_);
  yield_ += weight * (static_cast<double>(accepted) - yield_);
}

void DraftControl::verified(const Draft& draft, int64_t accepted, DraftRecord& record) {
  const auto offered = static_cast<int64_t>(draft.size());
  double survival = 1, expected = 0;
  for (int64_t i = 0; i < offered; ++i) {
    survival *= double{draft.confidence[static_cast<size_t>(i)]};
    expected += survival;
    if (i > accepted) continue;  // not looked at
    Place& p = places_[static_cast<size_t>(i)];
    p.right = kFade * p.right + (i < accepted ? 1 : 0), p.tried = kFade * p.tried + 1;
    p.confidence = kFade * p.confidence + double{draft.confidence[static_cast<size_t>(i)]};
  }
  record.expected = kRecordFade * record.expected + expected;
  record.accepted = kRecordFade * record.accepted + static_cast<double>(accepted);
  count(offered, accepted);
}

}  // namespace fathom
