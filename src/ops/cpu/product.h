// Products of matrices on the CPU: y = x . w^T with w decoded from checkpoint precision on the fly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/matrix.h"
#include "ops/cpu/scratch.h"

namespace fathom::ops::cpu {

/// Whether this machine has vectors that the fast variants were compiled for; without, they call the reference.
bool have_simd();

/// Rows of weights in a group: products start at a multiple of it and write whole groups.
inline constexpr int64_t kRowGroup = 16;

/// Length of a row of fp32 x with room for the last chunk of columns.
constexpr int64_t x_pitch(int64_t columns) {
  return round_up(columns, 32);
}

/// y[m, n - n0] = x[m] . w[n] for rows [n0, n1) of w, on this thread. x[m] is fp32 in the column order of the codec
/// (prepare_*). n0 is a multiple of kRowGroup; rows of y have room for n1 - n0 rounded up to whole groups.
/// A row of y has the same bits whatever m is.
void multiply(const Matrix& w, int64_t n0, int64_t n1, const float* const* x, int64_t m, float* y, int64_t y_pitch);

/// A bf16 row as x of a bf16 or fp8 weight.
void prepare_bf16(const bf16* x, int64_t columns, float* out);

/// A row of codes and scales (a multiple of 128 columns) as x of a weight of that codec.
void prepare_fp8(Codec codec, const e4m3* codes, const e8m0* scale, int64_t columns, float* out);

/// 128 packed e2m1 codes and four scales as x of a 4-bit weight.
void prepare_fp4(const uint8_t* codes, const uint8_t* scale, float* out);

}  // namespace fathom::ops::cpu
