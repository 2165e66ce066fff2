#include "model/batch_memory.h"

#include <algorithm>
#include <bit>

namespace fathom {
namespace {

constexpr int64_t kTokenCounts[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

int64_t power_of_two(int64_t at_least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(at_least)));
}

constexpr int64_t kLeastPages = 4, kTokensOfPage = 256;

/// Widths are powers of two, two ratio-128 entries a page.
BatchShape shape_of(int64_t tokens, int64_t pages, int64_t entries128) {
  const int64_t width = power_of_two(std::max({kLeastPages, pages, (entries128 + 1) / 2}));
  return {tokens, width, 2 * width};
}

/// `count` elements: those of `from`, then copies of the first.
template <typename T>
View<const T, 1> repeat_first(View<const T, 1> from, int64_t count, std::vector<T>& out) {
  out.assign(from.data, from.data + from.size[0]);
  out.resize(static_cast<size_t>(count), from(0));
  return View<const T, 1>(out.data(), count);
}

/// The same for rows of a table, made `width` wide with -1.
View<const int32_t, 2> repeat_first(View<const int32_t, 2> from, int64_t rows, int64_t width,
                                    std::vector<int32_t>& out) {
  out.assign(static_cast<size_t>(rows * width), -1);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(from[r < from.size[0] ? r : 0].data, from.size[1], out.begin() + r * width);
  return View<const int32_t, 2>(out.data(), rows, width);
}

template <typename T>
View<const T, 1> fill(View<const T, 1> from, int64_t count, const T& filler, std::vector<T>& out) {
  out.assign(from.data, from.data + from.size[0]);
  out.resize(static_cast<size_t>(count), filler);
  return View<const T, 1>(out.data(), count);
}

}  // namespace

std::optional<BatchShape> decode_shape(const StepBatch& b) {
  const int64_t tokens = b.ids.size[0];
  const auto* size =
      std::find_if(std::begin(kTokenCounts), std::end(kTokenCounts), [&](int64_t n) { return n >= tokens; });
  const bool single = b.prefill_tokens == 0 && b.logit_rows.size[0] == tokens;  // drafts among them
  if (tokens == 0 || size == std::end(kTokenCounts) || !single) return std::nullopt;
  return shape_of(*size, b.pages.size[1], b.index128.size[1]);
}

std::span<const int64_t> decode_sizes() {
  return kTokenCounts;
}

std::vector<BatchShape> decode_shapes(int64_t sequences, int64_t context) {
  std::vector<BatchShape> shapes;
  for (const int64_t tokens : kTokenCounts) {
    for (int64_t pages = kLeastPages;; pages *= 2) {
      shapes.push_back(shape_of(tokens, pages, 0));
      if (pages * kTokensOfPage >= context) break;
    }
    if (tokens >= sequences) break;
  }
  return shapes;
}

std::vector<BatchShape> fullest_shapes(int64_t tokens, int64_t context, int processors) {
  constexpr int64_t kMostShares = 8;  // blocks of a token; with more of them nothing is larger
  const int64_t widest = std::max(kLeastPages, context / kTokensOfPage + 1);
  std::vector<BatchShape> shapes;
  const auto add = [&](int64_t n, int64_t pages) {
    if (n > 0) shapes.push_back({n, pages, std::min(2 * pages, context / 128 + 1)});
  };
  if (tokens < processors) {  // shares grow as tokens fall: every number, where there are few
    for (int64_t n = 1; n <= tokens; ++n) add(n, widest);
  } else {
    for (int64_t shares = 1; shares <= kMostShares; ++shares) add(processors / shares, widest);
  }
  for (int64_t pages = kLeastPages; pages < widest; pages *= 2) {
    add(std::min<int64_t>(tokens, processors), pages);
    if (tokens >= processors) continue;
    for (int64_t shares = 2; shares <= 2 * kMostShares; ++shares)  // of two blocks a processor
      if (2 * processors / shares < tokens) add(2 * processors / shares, pages);
  }
  return shapes;
}

IdleBatch::IdleBatch(const ModelConfig& config, int64_t tokens, int64_t rows, int64_t context) {
  const int64_t pages = std::max<int64_t>(kLeastPages, context / kTokensOfPage + 1);
  const int64_t width = std::max({int64_t{config.window}, pages, context / 128 + 1, 2 * kLeastPages});
  const auto n = static_cast<size_t>(tokens);
  zeros_.resize(n), rows_.resize(static_cast<size_t>(rows));
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = static_cast<int32_t>(i);
  nothing_.assign(n * static_cast<size_t>(power_of_two(width)), -1);
  segments_.assign(n, ops::Segment{0, 0, 0, 0});
  entries_.assign(n, ops::CompressEntry{0, 0, -1});
  const View<const int32_t, 1> zeros(zeros_.data(), tokens);
  batch.ids = batch.position = batch.window_length = batch.length128 = batch.sequence = batch.visible4 = zeros;
  batch.window_slot = View<const int32_t, 1>(nothing_.data(), tokens);
  batch.segments = View<const ops::Segment, 1>(segments_.data(), tokens);
  batch.window_index = View<const int32_t, 2>(nothing_.data(), tokens, config.window);
  batch.index128 = View<const int32_t, 2>(nothing_.data(), tokens, context / 128 + 1);
  batch.pages = View<const int32_t, 2>(nothing_.data(), tokens, pages);
  batch.entries4 = batch.entries128 = View<const ops::CompressEntry, 1>(entries_.data(), tokens);
  batch.logit_rows = View<const int32_t, 1>(rows_.data(), rows);
}

template <typename Visit>
void BatchMemory::each_array(StepBatch& b, const Visit& visit) {
  visit(b.ids), visit(b.position), visit(b.segments), visit(b.window_slot), visit(b.window_index);
  visit(b.window_length), visit(b.index128), visit(b.length128), visit(b.entries4), visit(b.entries128);
  visit(b.pages), visit(b.sequence), visit(b.visible4), visit(b.logit_rows);
  visit(b.sampling);
}

void BatchMemory::send(StepBatch& b) {
  each_array(b, [&](auto& view) { pack_.add(view); });
  pack_.send();
}

const StepBatch& BatchMemory::place(const StepBatch& batch) {
  if (device_.shares_host_memory()) return batch;
  placed_ = batch;
  send(placed_);
  return placed_;
}

const StepBatch& BatchMemory::place(const StepBatch& b, const BatchShape& shape) {
  const int64_t n = shape.tokens;
  placed_ = b;
  StepBatch& p = placed_;
  p.ids = repeat_first(b.ids, n, ids_);
  p.position = repeat_first(b.position, n, position_);
  p.window_index = repeat_first(b.window_index, n, b.window_index.size[1], window_index_);
  p.window_length = repeat_first(b.window_length, n, window_length_);
  p.index128 = repeat_first(b.index128, n, shape.entries128, index128_);
  p.length128 = repeat_first(b.length128, n, length128_);
  p.pages = repeat_first(b.pages, n, shape.pages, pages_);
  p.sequence = repeat_first(b.sequence, n, sequence_);
  p.visible4 = repeat_first(b.visible4, n, visible4_);
  p.logit_rows = repeat_first(b.logit_rows, n, logit_rows_);
  p.sampling = fill(b.sampling, n, ops::RowSampling{}, sampling_);
  p.window_slot = fill(b.window_slot, n, -1, window_slot_);
  p.segments = fill(b.segments, n, ops::Segment{0, 0, 0, 0}, segments_);
  p.entries4 = fill(b.entries4, n, ops::CompressEntry{0, 0, -1}, entries4_);
  p.entries128 = fill(b.entries128, n, ops::CompressEntry{0, 0, -1}, entries128_);
  send(placed_);
  return placed_;
}

}  // namespace fathom
