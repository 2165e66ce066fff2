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

Speculator::Speculator(std::unique_ptr<DraftSource> source, int64_t depth, const ModelConfig& config,
                       const Cache& cache)
    : source_(std::move(source)), config_(config), cache_(cache), control_(source_->depth(), depth) {
  stats_.accepted_at.assign(static_cast<size_t>(source_->depth()), 0);
  stats_.offered_at.assign(static_cast<size_t>(source_->depth()), 0);
}

std::span<const LayerCache> Speculator::rings() const {
  return cache_.layers().subspan(static_cast<size_t>(config_.num_layers));
}

void Speculator::propose(std::span<Active* const> requests) {
  std::vector<Active*> next;
  for (Active* a : requests)
    if (a && a->running && !a->held && !a->cancelled && a->decodes(cache_)) next.push_back(a);
  const auto n = static_cast<int64_t>(next.size());
  const int64_t depth = control_.depth(n);
  if (depth == 0 || n == 0) return;
  const auto start = std::chrono::steady_clock::now();
  for (Active* a : next) propose(*a, depth, n);
  control_.proposals_took(n, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void Speculator::propose(Active& a, int64_t depth, int64_t requests) {
  const int64_t most = std::min(depth, a.request.max_tokens - a.generated() - 1);
  if (most <= 0) return;
  try {
    a.draft = ask(a, most);
  } catch (const Error&) {  // logits that are not numbers, or no token left: the request itself is not harmed
    ++stats_.failed;
    return;
  }
  ++stats_.proposals;
  a.draft.shorten(control_.worth(a.draft, a.drafts, requests));
}

/// Drafts as the request's own sampler would choose them, in the form that its output must have.
Draft Speculator::ask(const Active& a, int64_t most) {
  const int64_t last = cache_.length(a.sequence) - 1;
  window_rows_.clear();
  for (int64_t p = std::max<int64_t>(0, last - config_.window + 1); p <= last; ++p)
    window_rows_.push_back(cache_.window_row(a.sequence, p));
  Sampler sampler = a.sampler->copy();
  std::optional<text::ConstraintMatcher> form = a.form;
  const auto have = static_cast<int64_t>(a.tokens.size());
  const DraftStart start{a.tokens.back(), static_cast<int32_t>(last), window_rows_, most};
  Draft draft = source_->propose(start, rings(), [&](int64_t place, std::span<const float> logits) -> int32_t {
    const bool may_end = a.generated() + place >= a.request.min_tokens;
    const auto banned = may_end ? std::span<const int32_t>() : std::span<const int32_t>(a.request.stop_ids);
    const int32_t token = sampler.choose(logits, have + place, banned, form ? form->allowed() : nullptr);
    sampler.accept(token);
    return form && !form->accept(token) ? -1 : token;
  });
  draft.shorten(most);
  const auto outside = [&](int32_t token) { return token < 0 || token >= config_.vocab_size; };
  const auto refused = std::find_if(draft.tokens.begin(), draft.tokens.end(), outside);
  if (refused == draft.tokens.end()) return draft;
  ++stats_.refused;  // it and what follows it are not offered
  draft.shorten(refused - draft.tokens.begin());
  return draft;
}

void Speculator::verified(Active& a, int64_t accepted) {
  const auto offered = static_cast<int64_t>(a.draft.size());
  stats_.offered += offered, stats_.accepted += accepted;
  for (int64_t i = 0; i < offered; ++i) {
    ++stats_.offered_at[static_cast<size_t>(i)];
    if (i < accepted) ++stats_.accepted_at[static_cast<size_t>(i)];
  }
  a.offered += offered, a.accepted += accepted;
  control_.verified(a.draft, accepted, a.drafts);
  a.draft = {};
}

}  // namespace fathom
