#include "engine/draft_control.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace fathom {
namespace {

constexpr double kFade = 0.998;            // of what a place of the draft did, with each proposal
constexpr double kPlacePrior = 4;          // tokens that a place is taken to have done as it said
constexpr double kRecordFade = 0.99;       // of what a request's drafts did
constexpr double kRecordPrior = 32;        // tokens that a request's drafts are taken to have done as expected
const double kLeastGain = std::log(1.01);  // rounds must promise this much to go on
constexpr int64_t kWindow = 64;            // rounds that the gain looks back on
/// How wrong the gain may be after one, two, three, ... rounds: costs are measured for the first time.
constexpr double kDoubts[] = {0.6, 0.1, 0.05};
constexpr int64_t kFirstPause = 256;    // steps without drafts before they are tried again
constexpr int64_t kLastPause = 16384;   // the pause grows fourfold up to this
constexpr int64_t kProven = 256;        // rounds after which drafts are trusted anew
constexpr int64_t kRefresh = 256;       // steps after which one without drafts is measured again
constexpr int64_t kRefreshUnseen = 64;  // the same where the load changed and none was ever measured
constexpr int64_t kRefreshClose = 16;   // and where rounds are hardly better or worse: then it costs nothing
constexpr double kClose = 0.1;
constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeap = 3;         // a step is at most so many times as large as the largest one measured
constexpr int64_t kProbe = 16;       // rounds after which as many as possible are asked for
constexpr int64_t kFloor = 2;        // tokens verified when a trial begins
constexpr double kFixedShare = 0.6;  // of a round whose depth was not measured: what does not depend on the depth

}  // namespace

DraftControl::DraftControl(int64_t most, int64_t depth, std::span<const int64_t> sizes)
    : most_(most),
      fixed_(depth < 0 ? -1 : std::min(depth, most)),
      costs_(sizes),
      proposal_costs_(static_cast<size_t>(most) + 1),
      places_(static_cast<size_t>(most)),
      since_without_(kRefresh) {}

bool DraftControl::keeps_rows() const {
  if (fixed_ >= 0) return fixed_ > 0;
  return !load_ || !load_->off || load_->pause - load_->idle <= kWarmUp;
}

/// The load of so many requests. One that was not met before is tried as soon as there are rows to draft from.
DraftControl::Load& DraftControl::load_of(int64_t requests) {
  Load& l = loads_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(requests)))];
  if (l.met) return l;
  l.met = true, l.pause = kFirstPause, l.depth = most_;
  l.off = kept_ < kWarmUp, l.idle = l.pause - kWarmUp + kept_;
  return l;
}

/// Whether a step without drafts is due, so that it is known what drafts must beat.
bool DraftControl::measure_without(int64_t requests) {
  ++since_without_;
  const int64_t age = costs_.age(requests);
  const bool unseen = age == std::numeric_limits<int64_t>::max();
  const bool close = std::abs(load_->gain[static_cast<size_t>(load_->depth)]) < kClose;
  const int64_t due = unseen ? kRefreshUnseen : close ? kRefreshClose : kRefresh;
  if (age <= due || since_without_ <= due) return !costs_.of(requests);
  since_without_ = 0;
  return true;
}

int64_t DraftControl::depth(int64_t requests) {
  if (fixed_ >= 0 || requests <= 0) return std::max<int64_t>(0, fixed_);
  kept_ = keeps_rows() ? kept_ + 1 : 0;
  load_ = &load_of(requests);
  Load& l = *load_;
  if (l.off && ++l.idle >= l.pause && kept_ >= kWarmUp) {
    l.pause = std::min(4 * l.pause, kLastPause);
    l.off = false, l.tries = 0, l.gain = {}, l.square = {}, l.depth = most_;
  }
  if (!l.off && l.tries > 0 && l.tries < static_cast<int64_t>(std::size(kDoubts))) {
    // What the step of the last round cost is known by now: a trial that cannot pay needs no other round.
    const double gain = gain_of(requests, most_);
    if (gain + kDoubts[l.tries] < kLeastGain) l.off = true, l.idle = 0;
  }
  if (l.off || measure_without(requests)) return asked_ = 0;
  const bool all = l.tries < static_cast<int64_t>(std::size(kDoubts)) || l.tries % kProbe == 0;
  return asked_ = all ? most_ : l.depth;
}

void DraftControl::proposals_took(int64_t proposals, int64_t depth, double seconds) {
  if (depth > 0 && depth <= most_) proposal_costs_[static_cast<size_t>(depth)].took(proposals, seconds);
}

/// What a round costs; from the nearest depth that was measured, larger ones first, where this one was not.
double DraftControl::proposal_seconds(int64_t requests, int64_t depth) const {
  const auto like = [&](int64_t d) {
    return kFixedShare + (1 - kFixedShare) * static_cast<double>(depth) / static_cast<double>(d);
  };
  for (int64_t d = depth; d <= most_; ++d)
    if (const auto s = proposal_costs_[static_cast<size_t>(d)].of(requests)) return *s * like(d);
  for (int64_t d = depth - 1; d > 0; --d)
    if (const auto s = proposal_costs_[static_cast<size_t>(d)].of(requests)) return *s * like(d);
  return 0;
}

/// Probability that the draft of a place is right if those before it are: what the draft says of itself, corrected by
/// how right drafts of that place have been.
double DraftControl::calibrated(const Draft& draft, size_t place) const {
  const Place& p = places_[place];
  const double bias = (p.right + kPlacePrior) / (p.confidence + kPlacePrior);
  return std::clamp(double{draft.confidence[place]} * bias, 0.0, 1.0);
}

/// The round's tokens, likeliest first; of a request the earlier ones come first.
void DraftControl::line_up(std::span<const DraftOffer> offers) {
  tokens_.clear();
  for (size_t i = 0; i < offers.size(); ++i) {
    const DraftRecord& record = *offers[i].record;
    const double luck = (record.accepted + kRecordPrior) / (record.expected + kRecordPrior);
    double survival = 1;
    for (size_t k = 0; k < offers[i].draft->size(); ++k) {
      survival *= std::min(1.0, calibrated(*offers[i].draft, k) * luck);
      tokens_.push_back({survival, static_cast<int32_t>(k), static_cast<int32_t>(i)});
    }
  }
  std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    return a.place != b.place ? a.place < b.place : a.offer < b.offer;
  });
}

/// The highest rate that verifying some of the tokens gives when drafts of `depth` were asked for, in a step of at most
/// `most` tokens.
DraftControl::Choice DraftControl::best_of(int64_t requests, int64_t depth, int64_t most) const {
  const double proposal = proposal_seconds(requests, depth), without = costs_.of(requests).value_or(0);
  double expected = static_cast<double>(requests);
  Choice best{0, expected / (proposal + without)};
  int64_t count = 0;
  for (const Token& t : tokens_) {
    if (t.place >= depth) continue;
    if (requests + ++count > most) break;
    expected += t.survival;
    const double rate = expected / (proposal + costs_.of(requests + count).value_or(without));
    if (rate > best.rate) best = {count, rate};
  }
  return best;
}

/// Logarithm of the rate that the last round's tokens, cut to `depth`, give over that without drafts.
double DraftControl::gain_of(int64_t requests, int64_t depth) const {
  const double plain = static_cast<double>(requests) / costs_.of(requests).value_or(0);
  return std::log(best_of(requests, depth, kUnbounded).rate / plain);
}

/// Tokens worth verifying, once there is a round, where steps without drafts give the higher rate; at least `floor`.
int64_t DraftControl::least_of(int64_t requests, int64_t floor) const {
  const double without = costs_.of(requests).value_or(0);
  const double price = without > 0 ? static_cast<double>(requests) / without : 0;
  double expected = 0, best = 0;
  int64_t count = 0, at = 0;
  for (const Token& t : tokens_) {
    expected += t.survival;
    ++count;
    const double worth = expected - price * (costs_.of(requests + count).value_or(without) - without);
    if (worth > best || count <= floor) best = worth, at = count;
  }
  return at;
}

void DraftControl::choose(std::span<DraftOffer> offers, int64_t requests) {
  if (fixed_ >= 0) {
    for (DraftOffer& o : offers) o.keep = static_cast<int64_t>(o.draft->size());
    return;
  }
  Load& l = load_ ? *load_ : load_of(requests);
  line_up(offers);
  const double without = costs_.of(requests).value_or(0), plain = static_cast<double>(requests) / without;
  ++l.tries;
  const auto known = std::max<int64_t>(1, l.tries - static_cast<int64_t>(std::size(kDoubts)) + 1);
  const double weight = 1 / static_cast<double>(std::min(known, kWindow));
  for (int64_t depth = 1; depth <= asked_; ++depth) {
    const double gain = gain_of(requests, depth);
    if (!std::isfinite(gain)) continue;
    const auto d = static_cast<size_t>(depth);
    l.gain[d] += weight * (gain - l.gain[d]);
    l.square[d] += weight * (gain * gain - l.square[d]);
  }
  Choice best = best_of(requests, asked_, std::max(requests + 1, kLeap * costs_.largest()));
  // While a trial begins, some tokens are verified in any case: otherwise nobody learns how good they are.
  const int64_t floor = l.tries == 1 ? std::min({kFloor, requests, static_cast<int64_t>(tokens_.size())}) : 0;
  if (best.rate < plain) best.count = least_of(requests, floor);
  for (DraftOffer& o : offers) o.keep = 0;
  for (int64_t m = 0; m < std::max(floor, best.count); ++m) {
    const Token& t = tokens_[static_cast<size_t>(m)];
    offers[static_cast<size_t>(t.offer)].keep = t.place + 1;
  }
  for (DraftOffer& o : offers)  // a request that is not tried any more is forgiven in time
    if (o.keep == 0) o.record->expected *= kRecordFade, o.record->accepted *= kRecordFade;
  judge(l);
}

/// Sets the depth to ask for, and ends drafts at this load when rounds do not promise enough.
void DraftControl::judge(Load& l) {
  l.depth = 1;
  for (int64_t d = 2; d <= most_; ++d)
    if (l.gain[static_cast<size_t>(d)] > l.gain[static_cast<size_t>(l.depth)]) l.depth = d;
  const double gain = l.gain[static_cast<size_t>(l.depth)], square = l.square[static_cast<size_t>(l.depth)];
  double doubt = std::sqrt(std::max(0.0, square - gain * gain) / static_cast<double>(l.tries));
  if (l.tries <= static_cast<int64_t>(std::size(kDoubts))) doubt = kDoubts[l.tries - 1];
  if (l.tries > kProven) l.pause = kFirstPause;
  if (gain + doubt < kLeastGain) l.off = true, l.idle = 0;
}

void DraftControl::verified(const Draft& draft, int64_t accepted, DraftRecord& record) {
  const auto offered = static_cast<int64_t>(draft.size());
  double survival = 1, expected = 0;
  for (int64_t i = 0; i < offered; ++i) {
    survival *= calibrated(draft, static_cast<size_t>(i));
    expected += survival;
    if (i > accepted) continue;  // not looked at
    Place& p = places_[static_cast<size_t>(i)];
    p.right = kFade * p.right + (i < accepted ? 1 : 0);
    p.confidence = kFade * p.confidence + double{draft.confidence[static_cast<size_t>(i)]};
  }
  record.expected = kRecordFade * record.expected + expected;
  record.accepted = kRecordFade * record.accepted + static_cast<double>(accepted);
}

}  // namespace fathom
