// The stream mix in two launches, shared by residual_mix (24 mixes) and head (4 mixes).
//
// partial   grid (slices of 32 channels, groups of tokens): ends the previous half (X'), and sums the slice's part of
//           fn . X' and of the sum of squares. A lane holds one channel of all four streams and its values of fn in
//           registers; a warp takes one token after the other. Few tokens: few_partial_block().
// finish    grid (1 or 2, tokens): adds the slices in order, then block 0 of a token mixes the streams, normalises and
//           quantises, block 1 computes post and the Sinkhorn matrix, which nobody waits for in this op. Side by side,
//           so that a multiprocessor with two of them has one of each.
// A token's bits do not depend on the other tokens of the batch.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/residual_mix/mix_plan.h"

namespace fathom::ops::mix {

/// One channel of a token's streams, and y where a half ends.
struct Inputs {
  bf16 x[kStreams];
  bf16 y;
};

FATHOM_DEVICE Inputs load_inputs(const Params& p, int token, int channel) {
  Inputs in = {};
  if (channel >= p.streams.size[2]) return in;
  const int64_t t = p.rows.data ? p.rows(token) : token;
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) in.x[k] = p.streams(t, k, channel);
  return in;
}
FATHOM_DEVICE void load_y(const Params& p, int token, int channel, Inputs& in) {
  if (p.y.data && channel < p.streams.size[2]) in.y = p.y(token, channel);
}

/// What hc_post adds to post[k] y: sum_j comb[j][k] X[j], exact before it is rounded to fp32; and post[k].
struct Carried {
  float sum[kStreams], gate[kStreams];
};
FATHOM_DEVICE Carried carry(const float* of_post, const float* comb, const Inputs& in) {
  const auto post = *reinterpret_cast<const device::Float4*>(of_post);
  Carried c = {{}, {post.x, post.y, post.z, post.w}};
  device::Sum sum[kStreams];
  FATHOM_UNROLL
  for (int j = 0; j < kStreams; ++j) {
    const auto row = *reinterpret_cast<const device::Float4*>(comb + kStreams * j);
    const float factor[kStreams] = {row.x, row.y, row.z, row.w}, x = to_float(in.x[j]);
    FATHOM_UNROLL
    for (int k = 0; k < kStreams; ++k) {
      if (j == 0)  // accumulate_product() on zeros
        sum[k].high = device::add(device::multiply(factor[k], x), 0.0f), sum[k].low = fmaf(factor[k], x, -sum[k].high);
      else
        device::accumulate_product(sum[k], factor[k], x);
    }
  }
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) c.sum[k] = device::value(sum[k]);
  return c;
}
FATHOM_DEVICE Carried carry(const Params& p, int token, const Inputs& in) {
  return carry(p.post + token * p.post_stride, p.comb + token * p.comb_stride, in);
}

/// X'[k] = bf(post[k] y + what is carried).
FATHOM_DEVICE bf16 ended(const Carried& c, int k, bf16 y) {
  return to_bf16(device::add(device::multiply(c.gate[k], to_float(y)), c.sum[k]));
}
/// That of all streams, stored.
FATHOM_DEVICE void end_half(const Params& p, int token, int channel, bf16 y, const Carried& c, float (&x)[kStreams]) {
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    const bf16 v = ended(c, k, y);
    x[k] = to_float(v);
    if (channel < p.streams.size[2]) p.streams(token, k, channel) = v;
  }
}

/// Sums kCount values over the lanes of a warp; lane l gets the total of value l / (32 / kCount).
template <int kCount>
FATHOM_DEVICE float scatter_sum(float (&v)[kCount]) {
  const int lane = device::lane_index();
  int mask = 16;
  FATHOM_UNROLL
  for (int half = kCount / 2; half > 0; half /= 2, mask /= 2) {
    const bool upper = lane & mask;
    FATHOM_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= half) continue;
      const float kept = upper ? v[half + i] : v[i], sent = upper ? v[i] : v[half + i];
      v[i] = kept + device::shuffle_xor(sent, mask);
    }
  }
  FATHOM_UNROLL
  for (; mask > 0; mask /= 2) v[0] += device::shuffle_xor(v[0], mask);
  return v[0];
}

template <int kMixes>
FATHOM_DEVICE void partial_block(const Params& p) {
  constexpr int kCount = kPitch<kMixes>;
  const int lane = device::lane_index(), slice = device::block_x(), channel = slice * kSliceChannels + lane;
  const int64_t d = p.streams.size[2];
  float fn[kStreams][kMixes] = {};
  if (p.fn.data && channel < d) {
    FATHOM_UNROLL
    for (int m = 0; m < kMixes; ++m) FATHOM_UNROLL
    for (int k = 0; k < kStreams; ++k) fn[k][m] = p.fn.data[m * p.fn.stride[0] + k * d + channel];
  }
  const int begin = device::block_y() * p.block_tokens;
  const int end = begin + p.block_tokens < p.tokens ? begin + p.block_tokens : p.tokens;
  int token = begin + device::warp_index();
  // When a half ends, all but y is older than the previous kernel.
  Inputs next = {};
  Carried carried = {};
  if (p.y.data && token < end)
    next = load_inputs(p, p.first + token, channel), carried = carry(p, p.first + token, next);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (token >= end) return;
  if (!p.y.data) next = load_inputs(p, p.first + token, channel);
  load_y(p, p.first + token, channel, next);
  for (const int first = token; token < end; token += kPartialWarps) {
    const Inputs in = next;
    if (const int then = p.first + token + kPartialWarps; token + kPartialWarps < end)
      next = load_inputs(p, then, channel), load_y(p, then, channel, next);
    float x[kStreams];
    if (p.y.data) {
      if (token > first) carried = carry(p, p.first + token, in);
      end_half(p, p.first + token, channel, in.y, carried, x);
    } else {
      FATHOM_UNROLL
      for (int k = 0; k < kStreams; ++k) x[k] = to_float(in.x[k]);
    }
    if (!p.fn.data) continue;
    float sum[kCount] = {};
    FATHOM_UNROLL
    for (int k = 0; k < kStreams; ++k) {
      FATHOM_UNROLL
      for (int m = 0; m < kMixes; ++m) sum[m] = fmaf(x[k], fn[k][m], sum[m]);
      sum[kMixes] = fmaf(x[k], x[k], sum[kMixes]);
    }
    const float total = scatter_sum(sum);
    if (lane % (32 / kCount) == 0)
      p.partial[(int64_t{token} * p.slices + slice) * kCount + lane / (32 / kCount)] = total;
  }
}

/// The sums of a slice of 32 channels of X' in which a warp of four has six mixes, the first the squares, too.
/// `fn(m, k)`: of mix m of the six and stream k.
template <typename Fn>
FATHOM_DEVICE void few_sums(const float (&x)[kStreams], int warp, const Fn& fn, float* to) {
  constexpr int kEach = kMixes / kFewWarps;
  float sum[8] = {};
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    FATHOM_UNROLL
    for (int m = 0; m < kEach; ++m) sum[m] = fmaf(x[k], fn(m, k), sum[m]);
    sum[kEach] = fmaf(x[k], x[k], sum[kEach]);
  }
  const float total = scatter_sum(sum);
  const int lane = device::lane_index(), value = lane / 4;
  if (lane % 4 != 0) return;
  if (value < kEach) to[warp * kEach + value] = total;
  if (value == kEach && warp == 0) to[kMixes] = total;
}

/// The same for few tokens, a token and slice by a block whose four warps have six mixes each: a shorter chain, and few
/// enough registers to find a place beside the kernels of the experts. Grid (slices, tokens).
FATHOM_DEVICE void few_partial_block(const Params& p) {
  constexpr int kCount = kPitch<kMixes>, kEach = kMixes / kFewWarps;
  const int lane = device::lane_index(), warp = device::warp_index(), slice = device::block_x();
  const int local = device::block_y(), token = p.first + local, channel = slice * kSliceChannels + lane;
  Inputs in = {};
  Carried carried = {};
  if (p.y.data) in = load_inputs(p, token, channel), carried = carry(p, token, in);
  float fn[kStreams][kEach];
  const float* row = p.fn.data + warp * kEach * p.fn.stride[0] + channel;
  FATHOM_UNROLL
  for (int m = 0; m < kEach; ++m) FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) fn[k][m] = row[m * p.fn.stride[0] + k * p.streams.size[2]];
  device::sync_block();  // streams are stored by a warp each, and were read by all
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  if (!p.y.data) in = load_inputs(p, token, channel);
  load_y(p, token, channel, in);
  float x[kStreams];
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) {
    const bf16 v = p.y.data ? ended(carried, k, in.y) : in.x[k];
    if (p.y.data && warp == k) p.streams(token, k, channel) = v;
    x[k] = to_float(v);
  }
  few_sums(
      x, warp, [&](int m, int k) { return fn[k][m]; }, p.partial + (int64_t{local} * p.slices + slice) * kCount);
}

/// scale and base of the gate of this lane.
struct GateWeights {
  float scale = 0, base = 0;
};
template <int kMixes>
FATHOM_DEVICE GateWeights load_gate(const Params& p) {
  const int lane = device::lane_index(), which = lane / kStreams;
  if (lane >= kMixes || which >= 2) return {};
  return {p.scale(which), p.base(lane)};
}

/// This lane's part of the sums over slices. Asked for before what is needed later: loads come in order.
template <int kMixes>
FATHOM_DEVICE float load_slices(const Params& p, int token) {
  constexpr int kCount = kPitch<kMixes>, kRows = 32 / kCount;  // slices that a warp reads at once
  const int lane = device::lane_index(), warp = device::warp_index();
  const float* partial = p.partial + int64_t{token} * p.slices * kCount;
  float sum = 0;
  FATHOM_UNROLL_8
  for (int s = warp * kRows; s < p.slices; s += kFinishWarps * kRows)
    if (s + lane / kCount < p.slices) sum += partial[int64_t{s} * kCount + lane];
  return sum;
}

/// The mixes of a token, factor included, in shared memory, and behind them the gates: 4 pre, 4 post.
template <int kMixes>
FATHOM_DEVICE void add_slices(const Params& p, float sum, GateWeights gate, float* shared) {
  constexpr int kCount = kPitch<kMixes>;
  const int lane = device::lane_index(), warp = device::warp_index();
  shared[32 * warp + lane] = sum;
  device::sync_block();
  float* mixes = shared + 32 * kFinishWarps;
  if (warp == 0) {
    float total = 0;
    FATHOM_UNROLL
    for (int w = 0; w < kFinishWarps; ++w) total += shared[32 * w + lane];
    FATHOM_UNROLL
    for (int mask = kCount; mask < 32; mask *= 2) total += device::shuffle_xor(total, mask);
    const float squares = device::shuffle_from(total, kMixes);
    const float width = static_cast<float>(kStreams * p.streams.size[2]);
    const float mix = total * (1.0f / sqrtf(squares / width + p.rms_eps));
    if (lane < kMixes) mixes[lane] = mix;
    const int which = lane / kStreams;  // 0: pre, 1: post
    if (lane < kMixes && which < 2) {
      const float v = device::sigmoid(device::add(device::multiply(mix, gate.scale), gate.base));
      mixes[32 + lane] = which == 0 ? device::add(v, p.hc_eps) : 2.0f * v;
    }
  }
  device::sync_block();
}

/// Softmax over rows, then columns and rows normalised in turn; columns are last. One thread: 16 registers and no
/// exchange is the shortest chain. Sums are added up as soon as each factor is there, so that only the reciprocals, one
/// after the other, are waited for. `m`: the 16 mixes.
FATHOM_DEVICE void sinkhorn(const float* m, const float* base, float scale, int iterations, float eps, float* out) {
  float c[16], sum[4];
  FATHOM_UNROLL
  for (int i = 0; i < 16; ++i) c[i] = device::add(device::multiply(m[i], scale), base[i]);
  FATHOM_UNROLL
  for (int j = 0; j < 16; j += 4) {
    const float top = fmaxf(fmaxf(c[j], c[j + 1]), fmaxf(c[j + 2], c[j + 3]));
    FATHOM_UNROLL
    for (int k = j; k < j + 4; ++k) c[k] = expf(c[k] - top);
    const float r = device::reciprocal_fast(c[j] + c[j + 1] + c[j + 2] + c[j + 3]);
    FATHOM_UNROLL
    for (int k = j; k < j + 4; ++k) c[k] = fmaf(c[k], r, eps);
  }
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) sum[k] = c[k] + c[4 + k] + c[8 + k] + c[12 + k] + eps;
  // Scales lines of c (line n: four values `step` apart from c[line * n] on) by their sums, and adds up those across.
  const auto scale_lines = [&](const int line, const int step) {
    float across[4] = {eps, eps, eps, eps};
    FATHOM_UNROLL
    for (int n = 0; n < 4; ++n) {
      const float r = device::reciprocal_fast(sum[n]);
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) {
        across[i] = fmaf(c[line * n + step * i], r, across[i]);
        c[line * n + step * i] *= r;
      }
    }
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) sum[i] = across[i];
  };
  FATHOM_UNROLL_1
  for (int i = 1; i < iterations; ++i) scale_lines(1, 4), scale_lines(4, 1);
  scale_lines(1, 4);
  FATHOM_UNROLL
  for (int i = 0; i < 16; ++i) out[i] = c[i];
}

/// post and the Sinkhorn matrix, which the next half needs.
template <int kMixes>
FATHOM_DEVICE void next_block(const Params& p, float* shared) {
  const int thread = device::thread_index(), local = device::block_y(), token = p.first + local;
  const GateWeights gate = load_gate<kMixes>(p);
  float scale = 0, base[16] = {};
  if (thread == 32) {
    scale = p.scale(2);
    FATHOM_UNROLL
    for (int i = 0; i < 16; ++i) base[i] = p.base(2 * kStreams + i);
  }
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  add_slices<kMixes>(p, load_slices<kMixes>(p, local), gate, shared);
  const float* mixes = shared + 32 * kFinishWarps;
  if (thread < kStreams) p.next_post(token, thread) = mixes[32 + kStreams + thread];
  if (thread == 32) sinkhorn(mixes + 2 * kStreams, base, scale, p.iterations, p.hc_eps, &p.next_comb(token, 0, 0));
}

/// Sum over the block; `shared` has room for kFinishWarps values.
FATHOM_DEVICE double block_sum(double s, double* shared) {
  s = device::warp_sum(s);
  if (device::lane_index() == 0) shared[device::warp_index()] = s;
  device::sync_block();
  double total = shared[device::lane_index() % kFinishWarps];
  FATHOM_UNROLL
  for (int mask = kFinishWarps / 2; mask > 0; mask /= 2) total += device::shuffle_xor(total, mask);
  return total;
}

/// bf(sum_j pre[j] X[j]) in stream order, of 8 channels.
FATHOM_DEVICE void mix_channels(const device::Words4 (&in)[kStreams], const float (&pre)[kStreams], float (&h)[8]) {
  FATHOM_UNROLL
  for (int i = 0; i < 8; ++i) {
    float sum = 0;
    FATHOM_UNROLL
    for (int k = 0; k < kStreams; ++k) {
      const uint32_t word = in[k].word[i / 2];
      const float product = device::multiply(pre[k], i % 2 ? device::high_half(word) : device::low_half(word));
      sum = k == 0 ? product : device::add(sum, product);
    }
    h[i] = round_bf16(sum);
  }
}

inline constexpr int kFinishFloats = 32 * kFinishWarps + 64;

/// Streams mixed, normalised and quantised. `rehearse`: nothing is read or stored that another kernel knows.
template <int kMixes, int kPieces>
FATHOM_DEVICE void mix_streams(const Params& p, GateWeights gate, const device::Words4 (&norm)[kPieces], float* shared,
                               bool rehearse) {
  const int local = device::block_y(), token = p.first + local;
  const float* mixes = shared + 32 * kFinishWarps;
  const int64_t d = rehearse ? 0 : p.streams.size[2];
  float slices = 0;
  device::Words4 in[kPieces][kStreams] = {};
  if (!rehearse) {
    const int64_t t = p.rows.data ? p.rows(token) : token;
    slices = load_slices<kMixes>(p, local);
    FATHOM_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int64_t channel = 8 * (device::thread_index() + piece * kFinishThreads);
      FATHOM_UNROLL
      for (int k = 0; k < kStreams; ++k)
        if (channel < d) in[piece][k] = *reinterpret_cast<const device::Words4*>(&p.streams(t, k, channel));
    }
  }
  add_slices<kMixes>(p, slices, gate, shared);
  float pre[kStreams], h[kPieces][8];
  FATHOM_UNROLL
  for (int k = 0; k < kStreams; ++k) pre[k] = mixes[32 + k];
  double squares = 0;
  FATHOM_UNROLL
  for (int piece = 0; piece < kPieces; ++piece) {
    mix_channels(in[piece], pre, h[piece]);
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) squares += static_cast<double>(h[piece][i] * h[piece][i]);
  }
  const float factor = device::rms_factor(block_sum(squares, reinterpret_cast<double*>(shared)),
                                          static_cast<int>(p.streams.size[2]), p.rms_eps);
  FATHOM_UNROLL
  for (int piece = 0; piece < kPieces; ++piece) {
    const int64_t channel = 8 * (device::thread_index() + piece * kFinishThreads);
    const bool real = channel < d;
    float v[8];
    if (real && p.mixed.data) device::store_8(&p.mixed(token, channel), h[piece]);
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = norm[piece].word[i / 2];
      const float weight = i % 2 ? device::high_half(word) : device::low_half(word);
      v[i] = round_bf16(device::multiply(device::multiply(h[piece][i], factor), weight));
    }
    if (real) device::store_8(&p.x(token, channel), v);
    if (!p.codes.data) continue;
    const e8m0 scale = e4m3_scale(device::group_max(device::largest(v), 16));
    if (!real) continue;
    const device::Words2 word{device::codes_of(v, reciprocal(scale)), device::codes_of(v + 4, reciprocal(scale))};
    *reinterpret_cast<device::Words2*>(&p.codes(token, channel)) = word;
    if (channel % 128 == 0) p.code_scale(token, channel / 128) = scale;
  }
}

/// kPieces: d <= kPieces * 8 * kFinishThreads. kRehearse: the kernel is there long before its time, and goes through
/// its code once, which then comes from near.
template <int kMixes, int kPieces, bool kRehearse = false>
FATHOM_DEVICE void finish_block(const Params& p, float* shared) {
  if (device::block_x() == 1) return next_block<kMixes>(p, shared);
  const GateWeights gate = load_gate<kMixes>(p);
  device::Words4 norm[kPieces] = {};
  FATHOM_UNROLL
  for (int piece = 0; piece < kPieces; ++piece) {
    const int64_t channel = 8 * (device::thread_index() + piece * kFinishThreads);
    if (channel < p.streams.size[2]) norm[piece] = *reinterpret_cast<const device::Words4*>(&p.norm(channel));
  }
  FATHOM_UNROLL_1
  for (int turn = kRehearse ? 0 : 1; turn < 2; ++turn) {  // one call: what is rehearsed is the same code
    if (turn == 1) {
      device::wait_for_previous_kernel();
      device::let_next_kernel_start();
    }
    mix_streams<kMixes, kPieces>(p, gate, norm, shared, turn == 0);
    if (turn == 0) device::sync_block();
  }
}

}  // namespace fathom::ops::mix
