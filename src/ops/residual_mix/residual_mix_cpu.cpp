// The half-block boundary on the CPU, some tokens at a time: streams in fp32 once, the 24 mixes as a product, Sinkhorn
// with one token in each lane.
#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"
#include "ops/residual_mix/residual_mix.h"
#include "ops/residual_mix/streams.h"

namespace fathom::ops {

void residual_mix_ref(const ResidualMixArgs& a, const Launch&);

namespace {

struct StreamScratch;

constexpr int64_t kMixPitch = 32;  // 24 mixes in whole row groups
constexpr int64_t kBlock = 48;     // most tokens at a time

void post_part(const ResidualMixArgs& a, int64_t t) {
  const auto x = a.streams[t];
  bf16* const rows[kStreams] = {x[0].data, x[1].data, x[2].data, x[3].data};
  cpu::post_streams(rows, a.y[t].data, a.post[t].data, a.comb[t].data, a.streams.size[2]);
}

/// Tokens [t0, t0 + m). f: [m, 4 d] fp32 scratch.
void pre_part(const ResidualMixArgs& a, int64_t t0, int64_t m, float* f, float* x) {
  const int64_t d = a.streams.size[2];
  const float* rows[kBlock];
  float mixes[kBlock * kMixPitch];
  for (int64_t r = 0; r < m; ++r) {
    rows[r] = f + r * kStreams * d;
    for (int64_t k = 0; k < kStreams; ++k) cpu::widen(a.streams[t0 + r][k].data, d, f + (r * kStreams + k) * d);
  }
  cpu::multiply(cpu::matrix(a.fn), 0, kMixes, rows, m, mixes, kMixPitch);
  for (int64_t r = 0; r < m; ++r) {
    const auto width = static_cast<double>(kStreams * d);
    const float mean = static_cast<float>(cpu::sum_squares(rows[r], kStreams * d) / width);
    const float factor = 1.0f / std::sqrt(mean + a.rms_eps);
    for (int64_t i = 0; i < kMixes; ++i) mixes[r * kMixPitch + i] *= factor;
  }
  for (int64_t r = 0; r < m; ++r) {
    const int64_t t = t0 + r;
    float pre[kStreams];
    const float* mix = mixes + r * kMixPitch;
    cpu::sigmoid_gates(mix, a.scale(0), a.base.data, 1.0f, a.hc_eps, kStreams, pre);
    cpu::sigmoid_gates(mix + kStreams, a.scale(1), a.base.data + kStreams, 2.0f, 0.0f, kStreams, a.next_post[t].data);
    cpu::mix_streams(rows[r], pre, d, x);
    cpu::rmsnorm(x, d, a.norm.data, a.rms_eps);
    cpu::narrow(x, d, a.x[t].data);
    cpu::act_quant(x, d, a.x_codes[t].data, a.x_scale[t].data);
  }
  cpu::sinkhorn({mixes + 2 * kStreams, kMixPitch, a.scale(2), a.base.data + 2 * kStreams, a.sinkhorn_iterations,
                 a.hc_eps, a.next_comb[t0].data, a.next_comb.stride[0], m});
}

}  // namespace

bool residual_mix_cpu_can_run(const ResidualMixArgs& a, const DeviceInfo&) {
  return !a.sums.data && a.streams.size[1] == kStreams && a.streams.size[2] % 16 == 0 &&
         (a.next_comb.data == nullptr || a.next_comb.stride[1] == kStreams) &&
         (a.comb.data == nullptr || a.comb.stride[1] == kStreams);
}

void residual_mix_cpu(const ResidualMixArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return residual_mix_ref(a, l);
  const int64_t tokens = a.streams.size[0], d = a.streams.size[2];
  const double each = static_cast<double>(kStreams * d) * ((a.fn.data ? 60 : 0) + (a.y.data ? 20 : 0)) + 20e3;
  cpu::split(tokens, 8, each * static_cast<double>(tokens), [&](int64_t begin, int64_t end) {
    const int64_t block = std::min(end - begin, std::clamp<int64_t>((512 << 10) / (16 * d), 6, kBlock));
    auto* f = reinterpret_cast<float*>(
        cpu::thread_scratch<StreamScratch>(static_cast<size_t>((block * kStreams + 1) * d) * sizeof(float)));
    for (int64_t t = begin; t < end; t += block) {
      const int64_t m = std::min(block, end - t);
      for (int64_t r = 0; a.y.data && r < m; ++r) post_part(a, t + r);
      if (a.fn.data) pre_part(a, t, m, f, f + block * kStreams * d);
    }
  });
}

}  // namespace fathom::ops
