// The compressor on the CPU: channels in lanes, one pass for the largest score and one for the sums.
#include <algorithm>
#include <vector>

#include "ops/compress/compress.h"
#include "ops/compress/pool.h"
#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"

namespace fathom::ops {

void compress_ref(const CompressArgs& a, const Launch&);

namespace {

/// Where the samples of `position` lie, from channel `channel` on. Scores of the ring hold ape already.
cpu::PoolSample sample(const CompressArgs& a, const Segment& s, int64_t position, int64_t channel) {
  if (position >= s.position) {
    const int64_t t = s.first + position - s.position;
    return {a.k[t].data + channel, a.g[t].data + channel, a.ape[position % a.ratio].data + channel};
  }
  const int64_t slot = position % a.state_k.size[1];
  return {a.state_k[s.state][slot].data + channel, a.state_g[s.state][slot].data + channel, nullptr};
}

void complete(const CompressArgs& a, const CompressEntry& entry) {
  const Segment& s = a.segments(entry.segment);
  const int64_t width = a.norm.size[0], start = int64_t{entry.index} * a.ratio;
  cpu::PoolSample samples[128];
  int64_t count = 0;
  if (a.ratio == 4 && entry.index > 0)
    for (int64_t p = start - a.ratio; p < start; ++p) samples[count++] = sample(a, s, p, 0);
  for (int64_t p = start; p < start + a.ratio; ++p) samples[count++] = sample(a, s, p, a.ratio == 4 ? width : 0);
  alignas(64) float e[kHeadDim];
  cpu::pool(samples, count, width, e);
  cpu::rmsnorm(e, width, a.norm.data, a.rms_eps);
  cpu::Angles angles;
  cpu::make_angles(static_cast<int32_t>(start), a.rope_freq.data, false, angles);
  cpu::rope(e + width - kRopeDim, angles);
  if (a.index) {
    cpu::hadamard(e);
    cpu::quantize_fp4(e, reinterpret_cast<uint8_t*>(a.index_pool.row_codes(entry.slot)),
                      reinterpret_cast<uint8_t*>(a.index_pool.row_scales(entry.slot)));
  } else {
    cpu::write_kv_row(a.pool, a.format, entry.slot, e);
  }
}

void keep_row(const CompressArgs& a, const Segment& s, int64_t i) {
  const int64_t position = s.position + i, slot = position % a.state_k.size[1], width = a.k.size[1];
  std::copy_n(a.k[s.first + i].data, width, a.state_k[s.state][slot].data);
  const float *g = a.g[s.first + i].data, *ape = a.ape[position % a.ratio].data;
  float* out = a.state_g[s.state][slot].data;
  for (int64_t c = 0; c < width; ++c) out[c] = g[c] + ape[c];
}

}  // namespace

bool compress_cpu_can_run(const CompressArgs& a, const DeviceInfo&) {
  return (a.ratio == 4 || a.ratio == 128) && a.norm.size[0] == (a.index ? kIndexDim : kHeadDim);
}

void compress_cpu(const CompressArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return compress_ref(a, l);
  const int64_t width = a.norm.size[0], entries = a.entries.size[0];
  const double pooled = static_cast<double>(entries * width) * (a.ratio == 4 ? 8 : 128) * 30;
  cpu::split(entries, 1, pooled, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (a.entries(i).slot >= 0) complete(a, a.entries(i));
  });
  for (int64_t n = 0; n < a.segments.size[0]; ++n) {  // after all reads of the ring
    const Segment& s = a.segments(n);
    for (int64_t i = std::max<int64_t>(0, s.count - a.state_k.size[1]); i < s.count; ++i) keep_row(a, s, i);
  }
}

}  // namespace fathom::ops
