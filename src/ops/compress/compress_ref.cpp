#include <limits>

#include "ops/compress/compress.h"
#include "ops/exact_rows.h"

namespace fathom::ops {
namespace {

/// Value and score (ape included) of one channel of token `position` of a segment's sequence.
struct Sample {
  float k, g;
};

Sample sample(const CompressArgs& a, const Segment& s, int64_t position, int64_t channel) {
  if (position >= s.position) {
    const int64_t t = s.first + position - s.position;
    return {a.k(t, channel), a.g(t, channel) + a.ape(position % a.ratio, channel)};
  }
  const int64_t slot = position % a.state_k.size[1];
  return {a.state_k(s.state, slot, channel), a.state_g(s.state, slot, channel)};
}

/// Softmax-weighted sum over the samples of one channel: exp and weights in fp32, sums in double.
float pool(std::span<const Sample> samples) {
  float top = -std::numeric_limits<float>::infinity();
  for (const Sample& v : samples) top = std::max(top, v.g);
  double sum = 0, total = 0;
  for (const Sample& v : samples) sum += double{exact::exp(v.g - top)};
  for (const Sample& v : samples) total += double{exact::exp(v.g - top) / static_cast<float>(sum) * v.k};
  return static_cast<float>(total);
}

void complete(const CompressArgs& a, const CompressEntry& entry) {
  const Segment& s = a.segments(entry.segment);
  const int64_t width = a.norm.size[0], start = int64_t{entry.index} * a.ratio;
  std::vector<float> e(static_cast<size_t>(width));
  std::vector<Sample> samples;
  for (int64_t channel = 0; channel < width; ++channel) {
    samples.clear();
    const int64_t current = a.ratio == 4 ? width + channel : channel;
    if (a.ratio == 4 && entry.index > 0)
      for (int64_t p = start - a.ratio; p < start; ++p) samples.push_back(sample(a, s, p, channel));
    for (int64_t p = start; p < start + a.ratio; ++p) samples.push_back(sample(a, s, p, current));
    e[static_cast<size_t>(channel)] = round_bf16(pool(samples));
  }
  exact::rmsnorm(e, a.norm, a.rms_eps);
  exact::rope(std::span(e).last(kRopeDim), static_cast<int32_t>(start), a.rope_freq);
  if (a.index) {
    exact::hadamard(e);
    exact::write_index_row(a.index_pool, entry.slot, e);
  } else {
    exact::write_kv_row(a.pool, a.format, entry.slot, e);
  }
}

void keep_state(const CompressArgs& a, const Segment& s) {
  const int64_t ring = a.state_k.size[1], width = a.k.size[1];
  for (int64_t i = std::max<int64_t>(0, s.count - ring); i < s.count; ++i) {
    const int64_t position = s.position + i, slot = position % ring;
    for (int64_t c = 0; c < width; ++c) {
      a.state_k(s.state, slot, c) = a.k(s.first + i, c);
      a.state_g(s.state, slot, c) = a.g(s.first + i, c) + a.ape(position % a.ratio, c);
    }
  }
}

}  // namespace

void compress_ref(const CompressArgs& a, const Launch&) {
  for (int64_t i = 0; i < a.entries.size[0]; ++i)
    if (a.entries(i).slot >= 0) complete(a, a.entries(i));
  for (int64_t i = 0; i < a.segments.size[0]; ++i) keep_state(a, a.segments(i));  // after all reads of the ring
}

}  // namespace fathom::ops
