// Row-wise pieces of the CPU variants: norms, RoPE, quantisers, cache rows. Rounding points and codes are those of the
// specification; rows of fp32 values lie on the bf16 grid unless said otherwise.
#pragma once

#include <cstdint>

#include "ops/index_rows.h"
#include "ops/kv_rows.h"

namespace fathom::ops::cpu {

/// bf16 -> fp32.
void widen(const bf16* x, int64_t n, float* out);
/// fp32 on the bf16 grid -> bf16.
void narrow(const float* x, int64_t n, bf16* out);
/// Any fp32 -> the nearest bf16.
void store_bf16(const float* x, int64_t n, bf16* out);

/// Sum of squares in double.
double sum_squares(const float* x, int64_t n);

/// RMSNorm in place, rounded to bf16 once.
void rmsnorm(float* x, int64_t n, const bf16* weight, float eps);

/// Cosines and sines of the 32 angles of a position, each twice in a row; the sines with the signs that turn a pair (a,
/// b) into (a c - b s, b c + a s), or the other way round.
struct Angles {
  alignas(64) float cosine[kRopeDim];
  alignas(64) float sine[kRopeDim];
};
/// The angle is the fp32 product position * freq; its cosine and sine are rounded once from double.
void cosines_and_sines(int32_t position, const float* freq, float* cosine, float* sine);
void make_angles(int32_t position, const float* freq, bool inverse, Angles& out);
/// Rotates 64 channels in place, rounded to bf16.
void rope(float* x, const Angles& angles);

/// A query head of 512 channels in place: RMS normalisation without weight, then RoPE of the last 64.
void query_head(bf16* q, float eps, bool bf16_steps, const Angles& angles);

/// e4m3 codes and a scale for each 128 channels (the last group may be shorter).
void act_quant(const float* x, int64_t n, e4m3* codes, e8m0* scale);
/// 128 channels -> packed e2m1 codes and a scale for each 32.
void quantize_fp4(const float* x, uint8_t* codes, uint8_t* scales);
/// Walsh-Hadamard transform of 128 channels times 128^-0.5, rounded to bf16.
void hadamard(float* x);
/// 512 channels -> a KV row; the first 448 are rounded to e4m3 per 64 in both formats.
void write_kv_row(const KvPool& pool, RowFormat format, int64_t slot, const float* kv);

/// gate = bf(weight * (silu(min(gate, limit)) * clamp(up, -limit, limit))) with gate and up, any fp32, rounded to bf16
/// first. weight null: 1. n is a multiple of 16.
void swiglu(float* gate, const float* up, int64_t n, float limit, const float* weight);
/// out = bf(factor * sum of the parts in order, fp32). n is a multiple of 16.
void add_parts(const bf16* const* parts, int64_t count, int64_t n, float factor, bf16* out);

}  // namespace fathom::ops::cpu
