// The compressor. A block of 64 channels of one entry pools; one warp finishes an entry's row; blocks of segments keep
// the state.
//
// Entries read rows of the ring that the segment's new tokens may overwrite. Where no segment can be that long (few
// more tokens than segments), ratio 4 does everything in one launch; otherwise pooled rows go through the workspace
// and a second launch finishes them and keeps the state.
#pragma once

#include "ops/compress/pooling.h"
#include "ops/device/rows.cuh"

namespace fathom::ops::compress {

struct Pair {
  float k[2], g[2];
};

FATHOM_DEVICE void load_pair(const float* p, float (&v)[2]) {
  const device::Words2 w = *reinterpret_cast<const device::Words2*>(p);
  v[0] = std::bit_cast<float>(w.word[0]), v[1] = std::bit_cast<float>(w.word[1]);
}

/// Values and scores (ape included) of two channels of token `position`.
FATHOM_DEVICE Pair sample(const CompressArgs& a, const Segment& s, int32_t position, int32_t channel) {
  Pair out;
  if (position >= s.position) {
    const int32_t t = s.first + position - s.position;
    float ape[2];
    load_pair(&a.k(t, channel), out.k), load_pair(&a.g(t, channel), out.g);
    load_pair(&a.ape(position & (a.ratio - 1), channel), ape);
    out.g[0] += ape[0], out.g[1] += ape[1];
  } else {
    const uint32_t slot = static_cast<uint32_t>(position) % static_cast<uint32_t>(a.state_k.size[1]);
    load_pair(&a.state_k(s.state, slot, channel), out.k), load_pair(&a.state_g(s.state, slot, channel), out.g);
  }
  return out;
}

/// Sample number i of an entry's `count` samples for output channels `channel`, +1.
FATHOM_DEVICE Pair entry_sample(const CompressArgs& a, const Segment& s, const CompressEntry& e, int i,
                                int32_t channel) {
  const int32_t start = e.index * a.ratio, width = static_cast<int32_t>(a.norm.size[0]);
  if (a.ratio != 4) return sample(a, s, start + i, channel);
  if (e.index == 0) return sample(a, s, start + i, width + channel);
  return i < 4 ? sample(a, s, start - 4 + i, channel) : sample(a, s, start + i - 4, width + channel);
}

/// bf(sum softmax(g) k) of two channels out of kRows samples held in registers by one lane, `present` of them.
template <int kRows>
FATHOM_DEVICE void pool_rows(const Pair (&rows)[kRows], int present, float (&top)[2], float (&sum)[2],
                             float (&total)[2]) {
  FATHOM_UNROLL
  for (int c = 0; c < 2; ++c) {
    top[c] = -__builtin_huge_valf(), sum[c] = 0, total[c] = 0;
    FATHOM_UNROLL
    for (int i = 0; i < kRows; ++i)
      if (i < present) top[c] = fmaxf(top[c], rows[i].g[c]);
    FATHOM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (i >= present) continue;
      const float e = expf(rows[i].g[c] - top[c]);
      sum[c] += e, total[c] = fmaf(e, rows[i].k[c], total[c]);
    }
  }
}

/// The pooled row `row` [h] -> norm, RoPE, quantisation, page write, by one warp.
FATHOM_DEVICE void finish_row(const CompressArgs& a, const CompressEntry& e, const float* row) {
  const int lane = device::lane_index();
  const device::Turn turn = device::turn_of(e.index * a.ratio, a.rope_freq(lane));
  if (!a.index) {
    float v[16], w[16];
    device::load_lane(a.norm.data, w);
    FATHOM_UNROLL
    for (int i = 0; i < 16; ++i) v[i] = row[16 * lane + i];
    device::warp_rmsnorm(v, w, a.rms_eps);
    device::warp_rope(v, turn);
    device::write_kv_row(a.pool, a.format, static_cast<uint32_t>(e.slot), v);
    return;
  }
  float v[4], w[4];
  device::load_lane(a.norm.data, w);
  FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) v[i] = row[4 * lane + i];
  device::warp_rmsnorm(v, w, a.rms_eps);
  device::warp_rope(v, turn);
  device::warp_hadamard(v);
  e8m0 scale;
  const uint16_t codes = device::warp_fp4(v, scale);
  reinterpret_cast<uint16_t*>(a.index_pool.row_codes(e.slot))[lane] = codes;
  if (lane % 8 == 0) a.index_pool.row_scales(e.slot)[lane / 8] = static_cast<std::byte>(scale.bits);
}

/// Writes the ring rows of a segment's last tokens: every `stripes`-th from `stripe` on.
FATHOM_DEVICE void keep_state(const CompressArgs& a, const Segment& s, int stripe, int stripes) {
  const int32_t ring = static_cast<int32_t>(a.state_k.size[1]), width = static_cast<int32_t>(a.k.size[1]);
  for (int32_t i = (s.count > ring ? s.count - ring : 0) + stripe; i < s.count; i += stripes) {
    const int32_t position = s.position + i, slot = position % ring;
    for (int32_t c = device::thread_index(); c < width; c += kThreads) {
      a.state_k(s.state, slot, c) = a.k(s.first + i, c);
      a.state_g(s.state, slot, c) = a.g(s.first + i, c) + a.ape(position & (a.ratio - 1), c);
    }
  }
}

/// Ratio 4 in one launch: block number `block` of entries + segments; `row` has room for h floats.
FATHOM_DEVICE void fused_block(const CompressArgs& a, int64_t block, float* row) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t entries = a.entries.size[0];
  if (block >= entries) return keep_state(a, a.segments(block - entries), 0, 1);
  const CompressEntry e = a.entries(block);
  if (e.slot < 0) return;
  const Segment s = a.segments(e.segment);
  const int32_t channel = 2 * device::thread_index();
  if (channel < a.norm.size[0]) {
    const int present = e.index > 0 ? 8 : 4;
    Pair rows[8];
    FATHOM_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i < present) rows[i] = entry_sample(a, s, e, i, channel);
    float top[2], sum[2], total[2];
    pool_rows(rows, present, top, sum, total);
    row[channel] = round_bf16(total[0] / sum[0]), row[channel + 1] = round_bf16(total[1] / sum[1]);
  }
  device::sync_block();
  if (device::warp_index() == 0) finish_row(a, e, row);
}

/// Pools 64 channels of an entry from `first` on. A warp takes every 8th sample.
FATHOM_DEVICE void pool_channels(const CompressArgs& a, const Segment& s, const CompressEntry& e, int32_t first,
                                 float* pooled, float* shared) {
  const int lane = device::lane_index(), warp = device::warp_index();
  const int samples = a.ratio == 4 ? (e.index > 0 ? 8 : 4) : 128;
  const int32_t channel = first + 2 * lane;
  constexpr int kRows = 128 / kWarps;
  Pair rows[kRows];
  const int present = warp < samples ? (samples - warp + kWarps - 1) / kWarps : 0;
  FATHOM_UNROLL
  for (int i = 0; i < kRows; ++i)
    if (i < present) rows[i] = entry_sample(a, s, e, warp + kWarps * i, channel);
  float top[2], sum[2], total[2];
  pool_rows(rows, present, top, sum, total);
  FATHOM_UNROLL
  for (int c = 0; c < 2; ++c) {
    float* at = shared + 3 * (warp * kPoolChannels + 2 * lane + c);
    at[0] = top[c], at[1] = sum[c], at[2] = total[c];
  }
  device::sync_block();
  const int mine = device::thread_index();
  if (mine >= kPoolChannels) return;
  float most = -__builtin_huge_valf(), whole = 0, value = 0;
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, shared[3 * (w * kPoolChannels + mine)]);
  for (int w = 0; w < kWarps; ++w) {
    const float* at = shared + 3 * (w * kPoolChannels + mine);
    if (at[1] == 0) continue;  // a warp without samples
    const float factor = expf(at[0] - most);
    whole += at[1] * factor, value += at[2] * factor;
  }
  pooled[mine] = round_bf16(value / whole);
}

/// Pools 64 channels of an entry into pooled [entries][h]. Grid (h / 64, entries).
FATHOM_DEVICE void pool_block(const CompressArgs& a, float* pooled, float* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const CompressEntry e = a.entries(device::block_y());
  if (e.slot < 0) return;
  const int first = device::block_x() * kPoolChannels;
  pool_channels(a, a.segments(e.segment), e, first, pooled + int64_t{device::block_y()} * a.norm.size[0] + first,
                shared);
}

/// Any ratio in one launch: block number `block` of entries + segments; `row` has room for h floats, `shared` for
/// kPooledFloats. An entry of 128 samples is read by one multiprocessor: for few of them, beside something longer.
FATHOM_DEVICE void whole_block(const CompressArgs& a, int64_t block, float* row, float* shared) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t entries = a.entries.size[0];
  if (block >= entries) return keep_state(a, a.segments(block - entries), 0, 1);
  const CompressEntry e = a.entries(block);
  if (e.slot < 0) return;
  const Segment s = a.segments(e.segment);
  FATHOM_UNROLL_1
  for (int32_t first = 0; first < a.norm.size[0]; first += kPoolChannels) {
    pool_channels(a, s, e, first, row + first, shared);
    device::sync_block();
  }
  if (device::warp_index() == 0) finish_row(a, e, row);
}

/// Finishes pooled rows and keeps the state. Grid (entries / kWarps + segments * kStateStripes).
FATHOM_DEVICE void finish_block(const CompressArgs& a, const float* pooled) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t entries = a.entries.size[0], groups = (entries + kWarps - 1) / kWarps;
  const int64_t block = device::block_x();
  if (block >= groups) {
    const int64_t i = block - groups;
    return keep_state(a, a.segments(i / kStateStripes), static_cast<int>(i % kStateStripes), kStateStripes);
  }
  const int64_t i = block * kWarps + device::warp_index();
  if (i >= entries || a.entries(i).slot < 0) return;
  finish_row(a, a.entries(i), pooled + i * a.norm.size[0]);
}

}  // namespace fathom::ops::compress
