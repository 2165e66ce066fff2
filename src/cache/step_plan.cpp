#include "cache/step_plan.h"

#include <algorithm>

namespace fathom {
namespace {

template <typename T>
View<const T, 1> view_of(const std::vector<T>& v) {
  return View<const T, 1>(v.data(), v.size());
}

}  // namespace

const StepBatch& StepPlan::build(const ModelConfig& config, const Cache& cache,
                                 std::span<const SegmentRequest> requests) {
  for (auto* v : {&ids_, &position_, &window_slot_, &window_index_, &window_length_, &index128_, &length128_, &pages_,
                  &sequence_, &visible4_, &logit_rows_})
    v->clear();
  segments_.clear(), entries4_.clear(), entries128_.clear();
  batch_ = StepBatch{};
  for (size_t i = 0; i < requests.size(); ++i) add_segment(config, cache, requests[i], static_cast<int32_t>(i));
  add_tables(cache, requests);

  batch_.ids = view_of(ids_), batch_.position = view_of(position_), batch_.segments = view_of(segments_);
  batch_.window_slot = view_of(window_slot_), batch_.window_length = view_of(window_length_);
  batch_.length128 = view_of(length128_);
  batch_.entries4 = view_of(entries4_), batch_.entries128 = view_of(entries128_);
  batch_.sequence = view_of(sequence_), batch_.visible4 = view_of(visible4_), batch_.logit_rows = view_of(logit_rows_);
  batch_.window_index = View<const int32_t, 2>(window_index_.data(), ids_.size(), config.window);
  return batch_;
}

void StepPlan::add_segment(const ModelConfig& config, const Cache& cache, const SegmentRequest& request,
                           int32_t number) {
  const auto start = cache.length(request.sequence), count = static_cast<int64_t>(request.tokens.size());
  const auto first = static_cast<int32_t>(ids_.size());
  segments_.push_back(
      {first, static_cast<int32_t>(count), static_cast<int32_t>(start), cache.state_slot(request.sequence)});
  if (count > 1 && !request.decodes) batch_.prefill_tokens += count;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t p = start + i, oldest = std::max<int64_t>(0, p - config.window + 1);
    ids_.push_back(request.tokens[static_cast<size_t>(i)]);
    position_.push_back(static_cast<int32_t>(p));
    sequence_.push_back(number);
    visible4_.push_back(static_cast<int32_t>((p + 1) / 4));
    length128_.push_back(static_cast<int32_t>((p + 1) / 128));
    window_slot_.push_back(cache.window_write_row(request.sequence, p));
    window_length_.push_back(static_cast<int32_t>(p - oldest + 1));
    for (int64_t q = oldest; q < oldest + config.window; ++q)
      window_index_.push_back(q <= p ? cache.window_row(request.sequence, q) : -1);
    if (request.logits == WantLogits::all || (request.logits == WantLogits::last && i + 1 == count))
      logit_rows_.push_back(first + static_cast<int32_t>(i));
  }
  const auto complete = [&](int ratio, std::vector<ops::CompressEntry>& out) {
    for (int64_t e = start / ratio; e < (start + count) / ratio; ++e)
      out.push_back({number, static_cast<int32_t>(e), cache.entry_write_row(request.sequence, ratio, e)});
  };
  complete(4, entries4_);
  complete(128, entries128_);
}

void StepPlan::add_tables(const Cache& cache, std::span<const SegmentRequest> requests) {
  size_t most_pages = 1;
  for (const auto& r : requests) most_pages = std::max(most_pages, cache.entry_pages(r.sequence).size());
  pages_.assign(requests.size() * most_pages, -1);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto pages = cache.entry_pages(requests[i].sequence);
    std::copy(pages.begin(), pages.end(), pages_.begin() + static_cast<int64_t>(i * most_pages));
  }
  batch_.pages = View<const int32_t, 2>(pages_.data(), requests.size(), most_pages);

  const int32_t most = std::max(1, length128_.empty() ? 1 : *std::max_element(length128_.begin(), length128_.end()));
  index128_.assign(ids_.size() * static_cast<size_t>(most), -1);
  for (size_t t = 0; t < ids_.size(); ++t)
    for (int32_t e = 0; e < length128_[t]; ++e)
      index128_[t * static_cast<size_t>(most) + static_cast<size_t>(e)] =
          cache.entry_row(requests[static_cast<size_t>(sequence_[t])].sequence, 128, e);
  batch_.index128 = View<const int32_t, 2>(index128_.data(), ids_.size(), most);
}

}  // namespace fathom
