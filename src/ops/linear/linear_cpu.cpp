// Fast matrix products on the CPU: weights decoded from checkpoint precision in registers (one token) or once per tile.
#include <cstring>

#include "ops/cpu/project.h"
#include "ops/cpu/rows.h"
#include "ops/linear/linear.h"

namespace fathom::ops {

void linear_fp8_ref(const LinearFp8Args& a, const Launch&);
void linear_bf16_ref(const LinearBf16Args& a, const Launch&);
void linear_f32_ref(const LinearF32Args& a, const Launch&);

size_t linear_fp8_cpu_workspace(const LinearFp8Args& a, const DeviceInfo&) {
  return cpu::project_workspace(a.x.size[0], a.x.size[1]);
}
size_t linear_bf16_cpu_workspace(const LinearBf16Args& a, const DeviceInfo&) {
  return cpu::project_workspace(a.x.size[0], a.x.size[1]);
}
size_t linear_f32_cpu_workspace(const LinearF32Args& a, const DeviceInfo&) {
  return cpu::project_workspace(a.x.size[0], a.x.size[1]);
}

void linear_fp8_cpu(const LinearFp8Args& a, const Launch& l) {
  if (!cpu::have_simd()) return linear_fp8_ref(a, l);
  cpu::Part parts[kMaxParts];
  for (int32_t p = 0; p < a.parts; ++p) parts[p].w = cpu::matrix(a.part[p].w);
  cpu::project(
      a.x.size[0], a.x.size[1], std::span<const cpu::Part>(parts, static_cast<size_t>(a.parts)),
      [&](int64_t t, float* out) {
        cpu::prepare_fp8(cpu::Codec::fp8, a.x[t].data, a.x_scale[t].data, a.x.size[1], out);
      },
      [&](size_t p, int64_t t, int64_t n0, int64_t n1, const float* y) {
        cpu::store_bf16(y, n1 - n0, a.part[p].y[t].data + n0);
      },
      l.workspace);
}

void linear_bf16_cpu(const LinearBf16Args& a, const Launch& l) {
  if (!cpu::have_simd()) return linear_bf16_ref(a, l);
  const cpu::Part part{cpu::matrix(a.w)};
  cpu::project(
      a.x.size[0], a.x.size[1], std::span(&part, 1),
      [&](int64_t t, float* out) { cpu::prepare_bf16(a.x[t].data, a.x.size[1], out); },
      [&](size_t, int64_t t, int64_t n0, int64_t n1, const float* y) {
        bf16* out = a.y[t].data;
        if (a.factor == 1) return cpu::store_bf16(y, n1 - n0, out + n0);
        for (int64_t n = n0; n < n1; ++n) out[n] = to_bf16(round_bf16(y[n - n0]) * a.factor);
      },
      l.workspace);
}

void linear_f32_cpu(const LinearF32Args& a, const Launch& l) {
  if (!cpu::have_simd()) return linear_f32_ref(a, l);
  cpu::Part parts[kMaxParts];
  for (int32_t p = 0; p < a.parts; ++p) parts[p].w = cpu::matrix(a.part[p].w);
  cpu::project(
      a.x.size[0], a.x.size[1], std::span<const cpu::Part>(parts, static_cast<size_t>(a.parts)),
      [&](int64_t t, float* out) { cpu::prepare_bf16(a.x[t].data, a.x.size[1], out); },
      [&](size_t p, int64_t t, int64_t n0, int64_t n1, const float* y) {
        std::memcpy(a.part[p].y[t].data + n0, y, static_cast<size_t>(n1 - n0) * sizeof(float));
      },
      l.workspace);
}

}  // namespace fathom::ops
