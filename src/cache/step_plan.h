// Turns "these tokens for these sequences" into the StepBatch the model takes. Owns the arrays the batch points to.
#pragma once

#include <span>
#include <vector>

#include "cache/cache.h"

namespace fathom {

enum class WantLogits { none, last, all };

struct SegmentRequest {
  SequenceId sequence;
  std::span<const int32_t> tokens;  // at least one; the sequence has room reserved for them
  WantLogits logits = WantLogits::last;
  bool decodes = false;  // for reports: a sampled token and drafts behind it, no part of a prompt
};

class StepPlan {
 public:
  /// Builds the batch; the sequences must be distinct. Views stay valid until the next call.
  const StepBatch& build(const ModelConfig& config, const Cache& cache, std::span<const SegmentRequest> requests);

 private:
  void add_segment(const ModelConfig& config, const Cache& cache, const SegmentRequest& request, int32_t number);
  void add_tables(const Cache& cache, std::span<const SegmentRequest> requests);

  std::vector<int32_t> ids_, position_, window_slot_, window_index_, window_length_, index128_, length128_, pages_,
      sequence_, visible4_, logit_rows_;
  std::vector<ops::Segment> segments_;
  std::vector<ops::CompressEntry> entries4_, entries128_;
  StepBatch batch_;
};

}  // namespace fathom
