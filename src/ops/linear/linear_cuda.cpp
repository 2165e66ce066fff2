// The CUDA variants of the three products: conditions and launches.
//
//   sm80   fp8 widened to fp16 by integer instructions; bf16
//   sm89   fp8 tensor cores (on sm_90 the compiler makes fp16 products of them)
//   sm90   warpgroup products of fp16 or bf16, blocks in clusters, starting while the previous kernel ends; fp8
//          from 5 tokens on, and matrices of few rows, by the streaming kernel, which has the same bits
//   sm90_fast  fp8 on sm_90: where "sm90" streams, products of codes as they are by the fp8 tensor cores
// All but the last give a row the same bits in every batch.
// Pointers of x and of weights, and their row strides, must be multiples of 16 bytes. "sm90" reads weights before the
// previous kernel of the stream has ended: weights must not be written by it. The workspace of "sm90_fast" must be
// zeroed once before its first use and then belong to this op and one stream.
#ifdef FATHOM_HAVE_CUDA
#include "ops/linear/codes_params.h"
#include "ops/linear/gemm_params.h"
#include "ops/linear/stream_params.h"
#include "ops/linear/strips_params.h"

namespace fathom::ops {
namespace {

using gemm::Math;

template <typename T>
bool rows_aligned(const View<T, 2>& m) {
  return m.stride[0] * static_cast<int64_t>(sizeof(T)) % 16 == 0 && m.size[0] < int64_t{1} << 24;
}
bool fits(int64_t row_bytes) {
  return row_bytes > 0 && row_bytes < int64_t{1} << 24;
}

bool shapes_fit(const LinearFp8Args& a) {
  bool good = rows_aligned(a.x) && a.x.size[1] % 128 == 0 && fits(a.x.size[1]) && a.parts <= kMaxParts;
  for (int32_t i = 0; good && i < a.parts; ++i) good = rows_aligned(a.part[i].w.codes);
  return good;
}
bool shapes_fit(const LinearBf16Args& a) {
  return rows_aligned(a.x) && rows_aligned(a.w) && a.x.size[1] % 8 == 0 && fits(2 * a.x.size[1]);
}
bool shapes_fit(const LinearF32Args& a) {
  bool good = rows_aligned(a.x) && a.x.size[1] % 8 == 0 && fits(2 * a.x.size[1]) && a.parts <= kMaxParts;
  for (int32_t i = 0; good && i < a.parts; ++i) good = rows_aligned(a.part[i].w);
  return good;
}

/// wgmma exists on sm_90 alone.
bool has_warpgroup_products(const DeviceInfo& d) {
  return d.compute_capability == 90;
}

template <typename Args>
void run(Math math, const Args& a, const Launch& l, std::optional<int> log2_slices = {}) {
  gemm::Params p = gemm::pack(a);
  if (p.tokens == 0 || p.groups == 0) return;
  gemm::Plan plan = gemm::make_plan(math, p.groups, p.units, p.tokens, l.device, gemm::is_wide(math), log2_slices);
  plan.early = gemm::is_wide(math);
  gemm::set_plan(p, plan);
  if (math == Math::e4m3_wide)
    gemm::launch_e4m3_wide(p, plan, l.stream);
  else if (math == Math::e4m3)
    gemm::launch_e4m3(p, plan, l.stream);
  else if (math == Math::e4m3_f16)
    gemm::launch_e4m3_f16(p, plan, l.stream);
  else if (math == Math::bf16_wide)
    gemm::launch_bf16_wide(p, plan, l.stream);
  else
    gemm::launch_bf16(p, plan, l.stream);
}

/// The copy unit knows rows that follow each other.
bool can_stream(const LinearFp8Args& a) {
  bool good = a.x.size[0] < 1 << 20;
  for (int32_t i = 0; good && i < a.parts; ++i)
    good = a.part[i].w.codes.stride[0] == a.x.size[1] || a.part[i].w.codes.size[0] == 0;
  return good;
}

std::optional<strips::Plan> strips_plan(const LinearFp8Args& a, const stream::Work& work, const DeviceInfo& d) {
  if (!can_stream(a)) return {};
  return strips::make_plan(strips::strips_of(work.params), work.params.units, work.params.tokens, d.sm_count);
}

/// In a step with fewer tokens the other kernel is faster (its small blocks leave more room to what runs beside them),
/// but for matrices of few rows. Both add in the same order.
constexpr int kFewestStreamed = 5, kFewTiles = 15;
bool shall_stream(const LinearFp8Args& a, const stream::Work& work) {
  return can_stream(a) && (work.params.tokens >= kFewestStreamed || work.row_tiles <= kFewTiles);
}

}  // namespace

template <typename Args>
bool linear_sm80_can_run(const Args& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && shapes_fit(a);
}
template bool linear_sm80_can_run(const LinearFp8Args&, const DeviceInfo&);
template bool linear_sm80_can_run(const LinearBf16Args&, const DeviceInfo&);
template bool linear_sm80_can_run(const LinearF32Args&, const DeviceInfo&);

bool linear_sm89_can_run(const LinearFp8Args& a, const DeviceInfo& d) {
  return d.compute_capability >= 89 && linear_sm80_can_run(a, d);
}

template <typename Args>
bool linear_sm90_can_run(const Args& a, const DeviceInfo& d) {
  return has_warpgroup_products(d) && linear_sm80_can_run(a, d);
}
template bool linear_sm90_can_run(const LinearFp8Args&, const DeviceInfo&);
template bool linear_sm90_can_run(const LinearBf16Args&, const DeviceInfo&);
template bool linear_sm90_can_run(const LinearF32Args&, const DeviceInfo&);

void linear_fp8_sm80(const LinearFp8Args& a, const Launch& l) {
  run(Math::e4m3_f16, a, l);
}
void linear_fp8_sm89(const LinearFp8Args& a, const Launch& l) {
  run(Math::e4m3, a, l);
}
void linear_fp8_sm90(const LinearFp8Args& a, const Launch& l) {
  stream::Work work = stream::pack(a);
  if (work.params.tokens == 0 || work.row_tiles == 0) return;
  const stream::Plan plan =
      stream::make_plan(stream::Input::e4m3, work.row_tiles, work.params.units, work.params.tokens);
  if (!shall_stream(a, work)) return run(Math::e4m3_wide, a, l, plan.log2_slices);
  stream::set_plan(work.params, plan);
  stream::launch_linear(work.params, stream::describe_weights(work, device::describe_planes), plan, l.stream);
}
void linear_fp8_sm90_fast(const LinearFp8Args& a, const Launch& l) {
  stream::Work work = stream::pack(a);
  if (work.params.tokens == 0 || work.row_tiles == 0) return;
  if (const auto plan = strips_plan(a, work, l.device)) {
    const strips::Maps maps = strips::describe_strips(work, device::describe_planes);
    return strips::launch_strips(strips::params_for(work, *plan, l.workspace), maps, *plan, l.stream);
  }
  if (!shall_stream(a, work) || !stream::can_multiply_codes(work.params.units)) return linear_fp8_sm90(a, l);
  const stream::Plan plan = stream::make_codes_plan(work.row_tiles, work.params.units, work.params.tokens);
  stream::set_plan(work.params, plan);
  stream::launch_codes(work.params, stream::describe_codes(work, plan, device::describe_planes), plan, l.stream);
}
size_t linear_fp8_sm90_fast_workspace(const LinearFp8Args& a, const DeviceInfo& d) {
  return can_stream(a) ? strips::workspace_bytes(stream::pack(a), d.sm_count) : 0;
}
void linear_bf16_sm80(const LinearBf16Args& a, const Launch& l) {
  run(Math::bf16, a, l);
}
void linear_bf16_sm90(const LinearBf16Args& a, const Launch& l) {
  run(Math::bf16_wide, a, l);
}
void linear_f32_sm80(const LinearF32Args& a, const Launch& l) {
  run(Math::bf16, a, l);
}
void linear_f32_sm90(const LinearF32Args& a, const Launch& l) {
  run(Math::bf16_wide, a, l);
}

}  // namespace fathom::ops
#endif
