// Draft pieces: mean of the streams; the MTP block's start; what surrounds the product of the Markov head.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/draft/draft.h"

namespace fathom::ops::draft {

inline constexpr int kThreads = 128, kBlockChannels = 8 * kThreads;

/// Grid (parts of kBlockChannels channels, tokens). The sum is taken in stream order.
FATHOM_DEVICE void mean_block(const StreamMeanArgs& a) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t channel = (int64_t{device::block_x()} * kThreads + device::thread_index()) * 8, t = device::block_y();
  const int64_t streams = a.streams.size[1];
  if (channel >= a.streams.size[2]) return;
  float sum[8] = {};
  for (int64_t k = 0; k < streams; ++k) {
    float v[8];
    device::load_8(&a.streams(t, k, channel), v);
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) sum[i] += v[i];
  }
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) sum[i] /= static_cast<float>(streams);
  device::store_8(&a.mean(t, channel), sum);
}

/// Grid (parts of kBlockChannels channels, rows, streams).
FATHOM_DEVICE void join_block(const StreamJoinArgs& a) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t channel = (int64_t{device::block_x()} * kThreads + device::thread_index()) * 8, r = device::block_y(),
                k = device::block_z();
  if (channel >= a.stream.size[2]) return;
  const int64_t t = a.rows(r);
  float x[8], y[8];
  device::load_8(&a.token(t, channel), x);
  device::load_8(&a.stream(t, k, channel), y);
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) x[i] += y[i];
  device::store_8(&a.streams(r, k, channel), x);
}

/// Row of w1 that a token names. One that is none, drawn from logits that are not numbers, reads the first.
FATHOM_DEVICE int64_t row_of(const MarkovArgs& a, int64_t b) {
  const int64_t token = a.token(b);
  return token < 0 || token >= a.w1.size[0] ? 0 : token;
}

/// Rows of w1 side by side. Grid (B).
FATHOM_DEVICE void gather_block(const MarkovArgs& a, bf16* rows) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t b = device::block_x(), rank = a.w1.size[1];
  for (int64_t i = 8 * device::thread_index(); i < rank; i += kBlockChannels)
    *reinterpret_cast<device::Words4*>(rows + b * rank + i) =
        *reinterpret_cast<const device::Words4*>(&a.w1(row_of(a, b), i));
}

/// logits += product; the last block column of a row computes the confidence instead. Grid (parts + 1, B).
FATHOM_DEVICE void add_block(const MarkovArgs& a, const float* product, double* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t b = device::block_y(), vocabulary = a.logits.size[1];
  if (device::block_x() + 1 < device::grid_x()) {
    const int64_t v = int64_t{device::block_x()} * kThreads + device::thread_index();
    if (v < vocabulary) a.logits(b, v) += product[b * vocabulary + v];
    return;
  }
  const int64_t d = a.hidden.size[1], rank = a.w1.size[1];
  const bf16* e = &a.w1(row_of(a, b), 0);
  double sum = 0;
  for (int64_t i = device::thread_index(); i < d + rank; i += kThreads)
    sum += double{to_float(i < d ? a.hidden(b, i) : e[i - d]) * to_float(a.confidence(i))};
  sum = device::warp_sum(sum);
  if (device::lane_index() == 0) shared[device::warp_index()] = sum;
  device::sync_block();
  if (device::thread_index() != 0) return;
  double total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total += shared[w];
  a.confidence_logit(b) = static_cast<float>(total);
}

}  // namespace fathom::ops::draft
