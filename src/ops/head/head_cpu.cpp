#include "ops/cpu/project.h"
#include "ops/cpu/rows.h"
#include "ops/head/head.h"
#include "ops/residual_mix/streams.h"

namespace fathom::ops {

void head_ref(const HeadArgs& a, const Launch&);

namespace {

constexpr int64_t kStreamCount = 4;

struct StreamScratch;

/// hidden and normed of row r.
void mix_row(const HeadArgs& a, int64_t r, float* f) {
  const int64_t d = a.streams.size[2], width = kStreamCount * d;
  const auto x = a.streams[a.rows(r)];
  float mixes[cpu::kRowGroup], pre[kStreamCount];
  const float* row = f;
  for (int64_t k = 0; k < kStreamCount; ++k) cpu::widen(x[k].data, d, f + k * d);
  cpu::multiply(cpu::matrix(a.fn), 0, kStreamCount, &row, 1, mixes, cpu::kRowGroup);
  const float mean = static_cast<float>(cpu::sum_squares(f, width) / static_cast<double>(width));
  for (int64_t k = 0; k < kStreamCount; ++k) mixes[k] *= 1.0f / std::sqrt(mean + a.rms_eps);
  cpu::sigmoid_gates(mixes, a.scale(0), a.base.data, 1.0f, a.hc_eps, kStreamCount, pre);
  float* h = f + width;
  cpu::mix_streams(f, pre, d, h);
  cpu::narrow(h, d, a.hidden[r].data);
  cpu::rmsnorm(h, d, a.norm.data, a.rms_eps);
  cpu::narrow(h, d, a.normed[r].data);
}

}  // namespace

bool head_cpu_can_run(const HeadArgs& a, const DeviceInfo&) {
  return a.streams.size[1] == kStreamCount && a.streams.size[2] % 16 == 0;
}

size_t head_cpu_workspace(const HeadArgs& a, const DeviceInfo&) {
  return cpu::project_workspace(a.rows.size[0], a.streams.size[2]);
}

void head_cpu(const HeadArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return head_ref(a, l);
  const int64_t rows = a.rows.size[0], d = a.streams.size[2];
  cpu::split(rows, 1, static_cast<double>(rows * d) * 100, [&](int64_t begin, int64_t end) {
    auto* f = reinterpret_cast<float*>(
        cpu::thread_scratch<StreamScratch>(static_cast<size_t>((kStreamCount + 1) * d) * sizeof(float)));
    for (int64_t r = begin; r < end; ++r) mix_row(a, r, f);
  });
  const cpu::Part part{cpu::matrix(a.weight)};
  cpu::project(
      rows, d, std::span(&part, 1), [&](int64_t r, float* out) { cpu::prepare_bf16(a.normed[r].data, d, out); },
      [&](size_t, int64_t r, int64_t n0, int64_t n1, const float* y) {
        std::copy_n(y, n1 - n0, a.logits[r].data + n0);
      },
      l.workspace);
}

}  // namespace fathom::ops
