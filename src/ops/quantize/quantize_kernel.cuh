// act_quant of a row by a block: 8 channels a thread at a time, so that 16 neighbouring lanes hold a group of 128.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/quantize/quantize.h"

namespace fathom::ops::quantizing {

inline constexpr int kMostThreads = 256;

struct Params {
  const bf16* x = nullptr;
  const bf16* norm = nullptr;  // null: x as it is
  e4m3* codes = nullptr;
  e8m0* scale = nullptr;
  int64_t x_stride = 0, codes_stride = 0, scale_stride = 0;  // elements
  int32_t k = 0, threads = 32;
  float eps = 0;
};

FATHOM_HOST_DEVICE inline Params pack(const QuantizeArgs& a) {
  Params p;
  p.x = a.x.data, p.norm = a.norm.data, p.codes = a.codes.data, p.scale = a.scale.data;
  p.x_stride = a.x.stride[0], p.codes_stride = a.codes.stride[0], p.scale_stride = a.scale.stride[0];
  p.k = static_cast<int32_t>(a.x.size[1]), p.eps = a.rms_eps;
  while (p.threads < kMostThreads && p.threads * 8 < p.k) p.threads *= 2;
  return p;
}

/// 1 / sqrt(mean of squares + eps) of the row, whose first channels of this thread are `v`; `partial`: kMostThreads /
/// 32 sums in shared memory.
FATHOM_DEVICE float row_factor(const Params& p, const bf16* row, const float (&v)[8], device::Sum* partial) {
  device::Sum squares;
  const int first = device::thread_index() * 8;
  if (first < p.k) {
    FATHOM_UNROLL
    for (int c = 0; c < 8; ++c) device::accumulate(squares, v[c] * v[c]);  // exact
  }
  for (int i = first + p.threads * 8; i < p.k; i += p.threads * 8) {
    float more[8];
    device::load_8(row + i, more);
    FATHOM_UNROLL
    for (int c = 0; c < 8; ++c) device::accumulate(squares, more[c] * more[c]);
  }
  squares = device::warp_sum(squares);
  if (device::lane_index() == 0) partial[device::warp_index()] = squares;
  device::sync_block();
  device::Sum all = partial[0];
  for (int w = 1; w < p.threads / 32; ++w) all = device::merged(all, partial[w]);
  return device::rms_factor(all, p.k, p.eps);
}

/// Grid: rows.
FATHOM_DEVICE void quantize_block(const Params& p, std::byte* shared) {
  const int64_t token = device::block_x();
  const bf16* row = p.x + token * p.x_stride;
  const int first = device::thread_index() * 8;
  float v[8] = {}, w[8] = {};
  if (p.norm && first < p.k) device::load_8(p.norm + first, w);
  // The exception to the rule that successors are let in after the wait: so short a kernel gains by it, and what
  // follows it is a product, which reads nothing but weights before it waits.
  device::let_next_kernel_start();
  device::wait_for_previous_kernel();
  if (first < p.k) device::load_8(row + first, v);
  const float factor = p.norm ? row_factor(p, row, v, reinterpret_cast<device::Sum*>(shared)) : 1.0f;
  const int rounds = (p.k + p.threads * 8 - 1) / (p.threads * 8);
  FATHOM_UNROLL_1
  for (int r = 0; r < rounds; ++r) {  // all lanes take part in the maximum of a group
    const int at = (r * p.threads + device::thread_index()) * 8;
    const bool mine = at < p.k;
    if (r > 0 && mine) {
      device::load_8(row + at, v);
      if (p.norm) device::load_8(p.norm + at, w);
    }
    if (p.norm && mine) {
      FATHOM_UNROLL
      for (int c = 0; c < 8; ++c) v[c] = round_bf16(device::multiply(device::multiply(v[c], factor), w[c]));
    }
    const e8m0 scale = e4m3_scale(device::group_max(mine ? device::largest(v) : 0.0f, 16));
    if (!mine) continue;
    const float inverse = reciprocal(scale);
    device::Words2 codes;
    codes.word[0] = device::codes_of(v, inverse), codes.word[1] = device::codes_of(v + 4, inverse);
    *reinterpret_cast<device::Words2*>(p.codes + token * p.codes_stride + at) = codes;
    if (at % 128 == 0) p.scale[token * p.scale_stride + at / 128] = scale;
  }
}

}  // namespace fathom::ops::quantizing
