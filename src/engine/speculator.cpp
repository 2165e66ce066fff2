#include "engine/speculator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace fathom {

std::string draft_fault(const SpeculationStats& s) {
  constexpr int64_t kMany = 256;
  if (s.accepted == 0 && s.offered >= kMany)
    return fmt::format("of {} drafted tokens not one was right: the draft stages do not belong to this model",
                       s.offered);
  if (s.proposals == 0 && s.failed + s.refused >= kMany)
    return fmt::format("{} proposals of drafts failed: the draft stages are damaged", s.failed + s.refused);
  return {};
}

Speculator::Speculator(std::unique_ptr<DraftSource> source, int64_t depth, const ModelConfig& config, Cache& cache,
                       double acceptance, std::span<const int64_t> sizes)
    : source_(std::move(source)),
      config_(config),
      cache_(cache),
      acceptance_(acceptance),
      control_(std::min<int64_t>(source_->depth(), kMostDrafts), depth, sizes) {
  const auto places = static_cast<size_t>(std::min<int64_t>(source_->depth(), kMostDrafts));
  stats_.accepted_at.assign(places, 0), stats_.offered_at.assign(places, 0);
}

std::span<const LayerCache> Speculator::rings() const {
  return cache_.layers().subspan(static_cast<size_t>(config_.num_layers));
}

void Speculator::push(const StepBatch& batch, const Activations& out) {
  keeps_ = !paused_ && control_.keeps_rows();
  const bool now = keeps_ && !source_->wants_next();
  cache_.set_draft_rows(batch.window_slot, now);
  if (now) source_->push(batch, out, rings());
}

void Speculator::follow(const StepBatch& batch, const Activations& out, View<const int32_t, 1> next) {
  std::vector<int32_t> rows(static_cast<size_t>(next.size[0]), -1);
  for (int64_t i = 0; i < next.size[0]; ++i)
    if (next(i) >= 0) rows[static_cast<size_t>(i)] = batch.window_slot(i);
  cache_.set_draft_rows(View<const int32_t, 1>(rows.data(), rows.size()), true);
  source_->follow(batch, out, next, rings());
}

void Speculator::propose(std::span<Active* const> requests, const StepBatch& batch) {
  const auto decodes = [&](const Active* a) {
    return a && a->running && !a->held && !a->cancelled && a->decodes(cache_);
  };
  const auto n = static_cast<int64_t>(std::count_if(requests.begin(), requests.end(), decodes));
  const int64_t depth = paused_ ? 0 : control_.depth(n);
  if (depth == 0 || n == 0) return;
  const auto start = std::chrono::steady_clock::now();
  std::vector<Asked> asked;
  asked.reserve(static_cast<size_t>(n));
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!decodes(requests[i])) continue;
    Active& a = *requests[i];
    const int64_t most = std::min(depth, a.request.max_tokens - a.generated() - 1);
    if (most > 0) asked.push_back(ask(a, batch.segments(static_cast<int64_t>(i)), most));
  }
  if (asked.empty()) return;
  std::vector<DraftStart> starts;
  for (Asked& a : asked) {
    a.start.window_rows = a.window_rows, a.start.draws = a.draws;
    starts.push_back(a.start);
  }
  auto drafts = source_->propose(starts, rings(), [&](size_t i, int64_t place, std::span<const float> logits) {
    return choose(asked[i], place, logits);
  });
  for (size_t i = 0; i < asked.size(); ++i) take(asked[i], std::move(drafts[i]));
  if (!source_->first_use())
    control_.proposals_took(n, depth, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  std::vector<DraftOffer> offers;
  for (const Asked& a : asked) offers.push_back({&a.request->draft, &a.request->drafts});
  control_.choose(offers, n);
  for (size_t i = 0; i < asked.size(); ++i) asked[i].request->draft.shorten(offers[i].keep);
}

/// `fed`: the request's segment of the last step.
Speculator::Asked Speculator::ask(Active& a, const ops::Segment& fed, int64_t most) const {
  const int64_t last = cache_.length(a.sequence) - 1;
  Asked out{&a, a.sampler->copy(), a.form, {}, {}, {}};
  for (int64_t p = std::max<int64_t>(0, last - config_.window + 1); p <= last; ++p) {
    const int32_t row = cache_.window_row(a.sequence, p);
    if (cache_.draft_row(row)) out.window_rows.push_back(row);
  }
  const auto have = static_cast<int64_t>(a.tokens.size());
  for (int64_t i = 0; i < most && source_->draws(); ++i) out.draws.push_back(a.sampler->draw_at(have + i));
  out.start.token = a.tokens.back(), out.start.position = static_cast<int32_t>(last), out.start.most = most;
  out.start.step_row = fed.first + last - fed.position;
  out.start.own_row = cache_.window_row(a.sequence, last);
  return out;
}

/// A draft as the request's own sampler would choose it, in the form that its output must have.
int32_t Speculator::choose(Asked& asked, int64_t place, std::span<const float> logits) const {
  const Active& a = *asked.request;
  const bool may_end = a.generated() + place >= a.request.min_tokens;
  const auto banned = may_end ? std::span<const int32_t>() : std::span<const int32_t>(a.request.stop_ids);
  const auto position = static_cast<int64_t>(a.tokens.size()) + place;
  try {
    const int32_t token = asked.sampler.choose(logits, position, banned, asked.form ? asked.form->allowed() : nullptr);
    asked.sampler.accept(token);
    return asked.form && !asked.form->accept(token) ? -1 : token;
  } catch (const Error&) {  // logits that are not numbers, or no token left: the request itself is not harmed
    asked.failed = place == 0;
    return -1;
  }
}

/// The part of a proposal that can be verified becomes the request's draft.
void Speculator::take(Asked& asked, Draft draft) {
  Active& a = *asked.request;
  draft.shorten(asked.start.most);
  const auto outside = [&](int32_t token) { return token < 0 || token >= config_.vocab_size; };
  const auto refused = std::find_if(draft.tokens.begin(), draft.tokens.end(), outside);
  if (refused != draft.tokens.end()) {
    ++stats_.refused;  // it and what follows it are not offered
    draft.shorten(refused - draft.tokens.begin());
    if (draft.empty()) return;
  } else if (asked.failed || (draft.empty() && source_->draws())) {
    ++stats_.failed;
    return;
  }
  if (asked.form && source_->draws()) {  // drawn without looking at it
    int64_t fits = 0;
    for (const int32_t token : draft.tokens)
      if (asked.form->accept(token))
        ++fits;
      else
        break;
    draft.shorten(fits);
  }
  ++stats_.proposals;
  if (acceptance_ >= 0) draft.confidence.assign(draft.size(), static_cast<float>(acceptance_));
  a.draft = std::move(draft);
}

void Speculator::verified(Active& a, int64_t accepted) {
  const auto offered = static_cast<int64_t>(a.draft.size());
  stats_.offered += offered, stats_.accepted += accepted;
  for (int64_t i = 0; i < offered; ++i) {
    const auto place = static_cast<size_t>(i);
    ++stats_.offered_at[place], ++a.use.offered_at[place];
    if (i < accepted) ++stats_.accepted_at[place], ++a.use.accepted_at[place];
  }
  a.use.offered += offered, a.use.accepted += accepted;
  control_.verified(a.draft, accepted, a.drafts);
  a.draft = {};
}

}  // namespace fathom
