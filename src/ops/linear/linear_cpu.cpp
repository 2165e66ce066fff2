// Fast matrix products on the CPU: weights decoded from checkpoint precision in registers (one token) or once per tile.
#include <span>

#include "ops/linear/linear.h"

namespace fathom::ops {
void linear_fp8_ref(const LinearFp8Args& a, const Launch&);
void linear_bf16_ref(const LinearBf16Args& a, const Launch&);
void linear_f32_ref(const LinearF32Args& a, const Launch&);
}  // namespace fathom::ops

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/project-inl.h"
#include "ops/cpu/targets.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
void fp8(const LinearFp8Args& a, const Launch& l) {
  linear_fp8_ref(a, l);
}
void bf16_in_out(const LinearBf16Args& a, const Launch& l) {
  linear_bf16_ref(a, l);
}
void f32(const LinearF32Args& a, const Launch& l) {
  linear_f32_ref(a, l);
}
#else

void fp8(const LinearFp8Args& a, const Launch& l) {
  Matrix parts[kMaxParts];
  for (int32_t p = 0; p < a.parts; ++p) parts[p] = cpu::matrix(a.part[p].w);
  project(
      a.x.size[0], std::span(parts, static_cast<size_t>(a.parts)),
      [&](int64_t t, float* out) { prepare_fp8<false>(a.x[t].data, a.x_scale[t].data, a.x.size[1], out); },
      [&](size_t p, int64_t t, int64_t n0, int64_t n1, const float* y) {
        store_row_bf16(y, n1 - n0, a.part[p].y[t].data + n0);
      },
      l.workspace);
}

void bf16_in_out(const LinearBf16Args& a, const Launch& l) {
  const Matrix w = cpu::matrix(a.w);
  project(
      a.x.size[0], std::span(&w, 1), [&](int64_t t, float* out) { prepare_bf16(a.x[t].data, a.x.size[1], out); },
      [&](size_t, int64_t t, int64_t n0, int64_t n1, const float* y) {
        bf16* out = a.y[t].data;
        if (a.factor == 1) return store_row_bf16(y, n1 - n0, out + n0);
        for (int64_t n = n0; n < n1; ++n) out[n] = to_bf16(round_bf16(y[n - n0]) * a.factor);
      },
      l.workspace);
}

void f32(const LinearF32Args& a, const Launch& l) {
  Matrix parts[kMaxParts];
  for (int32_t p = 0; p < a.parts; ++p) parts[p] = cpu::matrix(a.part[p].w);
  project(
      a.x.size[0], std::span(parts, static_cast<size_t>(a.parts)),
      [&](int64_t t, float* out) { prepare_bf16(a.x[t].data, a.x.size[1], out); },
      [&](size_t p, int64_t t, int64_t n0, int64_t n1, const float* y) {
        std::memcpy(a.part[p].y[t].data + n0, y, static_cast<size_t>(n1 - n0) * sizeof(float));
      },
      l.workspace);
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace fathom::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(fp8);
HWY_EXPORT(bf16_in_out);
HWY_EXPORT(f32);

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
  HWY_DYNAMIC_DISPATCH(fp8)(a, l);
}
void linear_bf16_cpu(const LinearBf16Args& a, const Launch& l) {
  HWY_DYNAMIC_DISPATCH(bf16_in_out)(a, l);
}
void linear_f32_cpu(const LinearF32Args& a, const Launch& l) {
  HWY_DYNAMIC_DISPATCH(f32)(a, l);
}

}  // namespace fathom::ops
#endif
