// Kernels of the CPU attention: cache rows in fp32, scores, softmax, weighted sums, output.
//
// Rows of 512 channels are kept in *split order*: of every group of channels that fills two vectors, first the even
// channels, then the odd ones, which is what unpacking bf16 and e4m3 pairs gives. Queries, cache rows and sums share
// it.
#pragma once

#include <cstdint>

#include "ops/kv_rows.h"

namespace fathom::ops::cpu {

/// A cache row as 512 fp32 values in split order.
void decode_kv_row(RowFormat format, const std::byte* data, const std::byte* scales, float* out);

/// A query head of 512 bf16 values in split order.
void load_query(const bf16* q, float* out);

/// s[m, r] = scale * dot(q[m], rows[r]) for `heads` queries 512 apart and `count` rows. Rows of s have room for count
/// rounded up to a multiple of 4. Every score has the same bits whatever the counts are.
void attention_scores(const float* q, int64_t heads, const float* const* rows, int64_t count, float scale, float* s,
                      int64_t pitch);

/// Turns n scores (room for a multiple of 16) into bf16-rounded exp(s - max); returns max and the sum before rounding.
struct SoftmaxSums {
  float top, sum;
};
SoftmaxSums attention_softmax(float* s, int64_t n);

/// o[m] (+)= sum_r p[m, r] * rows[r], in the order of the rows. `first`: o is written, else added to.
void attention_values(const float* p, int64_t pitch, int64_t heads, const float* const* rows, int64_t count, bool first,
                      float* o);

/// out = bf(o / den), then, with 32 cosines and sines, the last 64 channels turned back by those angles.
void attention_output(const float* o, float den, const float* cosine, const float* sine, bf16* out);

}  // namespace fathom::ops::cpu
