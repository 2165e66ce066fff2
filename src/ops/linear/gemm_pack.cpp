// The arguments of the three operations as parameters of the product kernel.
#include <cstdint>

#include "ops/linear/gemm_params.h"

namespace fathom::ops::gemm {
namespace {

int32_t groups_of(int64_t rows) {
  return static_cast<int32_t>((rows + kGroupRows - 1) / kGroupRows);
}

/// Appends a part.
template <typename W, typename Y>
Part& add(Params& p, const View<W, 2>& w, const View<Y, 2>& y) {
  Part& part = p.part[p.parts++];
  part.w = reinterpret_cast<const std::byte*>(w.data);
  part.w_stride = w.stride[0] * static_cast<int64_t>(sizeof(W));
  part.y = y.data, part.y_stride = y.stride[0];
  part.rows = static_cast<int32_t>(w.size[0]), part.first_group = p.groups;
  part.aligned = y.stride[0] % 4 == 0 && reinterpret_cast<uintptr_t>(y.data) % (4 * sizeof(Y)) == 0;
  p.groups += groups_of(w.size[0]);
  return part;
}

template <typename X>
Params begin(const View<X, 2>& x) {
  Params p;
  p.x = reinterpret_cast<const std::byte*>(x.data);
  p.x_stride = x.stride[0] * static_cast<int64_t>(sizeof(X));
  p.tokens = static_cast<int32_t>(x.size[0]);
  p.row_bytes = static_cast<int32_t>(x.size[1] * static_cast<int64_t>(sizeof(X)));
  p.units = (p.row_bytes + kUnitBytes - 1) / kUnitBytes;
  return p;
}

}  // namespace

Params pack(const LinearFp8Args& a) {
  Params p = begin(a.x);
  p.x_scale = reinterpret_cast<const uint8_t*>(a.x_scale.data);
  p.x_scale_stride = a.x_scale.stride[0];
  for (int32_t i = 0; i < a.parts; ++i) {
    const auto& from = a.part[i];
    if (from.w.codes.size[0] == 0) continue;
    Part& part = add(p, from.w.codes, from.y);
    part.scale = reinterpret_cast<const uint8_t*>(from.w.scale.data);
    part.scale_stride = from.w.scale.stride[0];
  }
  return p;
}

Params pack(const LinearBf16Args& a) {
  Params p = begin(a.x);
  p.factor = a.factor;
  if (a.w.size[0] > 0) add(p, a.w, a.y);
  return p;
}

Params pack(const LinearF32Args& a) {
  Params p = begin(a.x);
  p.fp32_out = true;
  for (int32_t i = 0; i < a.parts; ++i)
    if (a.part[i].w.size[0] > 0) add(p, a.part[i].w, a.part[i].y);
  return p;
}

}  // namespace fathom::ops::gemm
