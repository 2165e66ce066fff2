// Drawing tokens on the processor.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/choose/choose.h"

namespace fathom::ops {

/// Draws one token after the other; keeps its scratch memory in between.
class TokenDraw {
 public:
  /// `logits`: finite, or minus infinity for tokens that must not come; one at least is finite. how.scale > 0.
  int32_t operator()(std::span<const float> logits, const RowSampling& how);

 private:
  void weigh(std::span<const float> logits, float scale);
  uint64_t filter(std::span<const float> logits, const RowSampling& how);
  int32_t first_in_order(uint64_t random) const;

  std::vector<uint64_t> weights_;  // in proportion to the probabilities
  std::vector<std::pair<float, int32_t>> ranked_, kept_;
};

}  // namespace fathom::ops
