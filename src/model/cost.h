// Bytes and floating-point operations of the ops, as the recorder reports them: each weight and each input read once,
// each output written once, a multiplication and an addition counted as two.
#pragma once

#include <cstdint>
#include <vector>

#include "base/view.h"
#include "ops/weights.h"

namespace fathom::cost {

struct Cost {
  int64_t bytes = 0, flops = 0;
  Cost& operator+=(const Cost& o) {
    bytes += o.bytes, flops += o.flops;
    return *this;
  }
};

template <typename T, int Rank>
int64_t bytes_of(const View<T, Rank>& v) {
  return v.data ? v.count() * static_cast<int64_t>(sizeof(T)) : 0;
}

inline int64_t bytes_of(const ops::Fp8Weight& w) {
  return bytes_of(w.codes) + bytes_of(w.scale);
}

/// A product of T rows with a weight of N x K.
inline Cost product(int64_t tokens, int64_t rows, int64_t columns, int64_t weight_bytes) {
  return {weight_bytes, 2 * tokens * rows * columns};
}

/// Routed experts [first, first + count): each touched expert is read once.
inline Cost experts(const ops::ExpertWeight& w1, const ops::ExpertWeight& w2, View<const int32_t, 2> expert,
                    int32_t first, int32_t count) {
  std::vector<bool> seen(static_cast<size_t>(count), false);
  int64_t distinct = 0, pairs = 0;
  for (int64_t t = 0; t < expert.size[0]; ++t) {
    for (int64_t i = 0; i < expert.size[1]; ++i) {
      if (expert(t, i) < first || expert(t, i) >= first + count) continue;
      ++pairs;
      const auto e = static_cast<size_t>(expert(t, i) - first);
      if (!seen[e]) seen[e] = true, ++distinct;
    }
  }
  const int64_t each = 2 * (w1.codes_stride + w1.scale_stride) + w2.codes_stride + w2.scale_stride;
  return {distinct * each, 2 * pairs * 3 * w1.rows * w1.columns};
}

}  // namespace fathom::cost
