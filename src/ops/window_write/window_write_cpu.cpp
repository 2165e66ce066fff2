#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"
#include "ops/window_write/window_write.h"

namespace fathom::ops {

void window_write_ref(const WindowWriteArgs& a, const Launch&);

void window_write_cpu(const WindowWriteArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return window_write_ref(a, l);
  cpu::split(a.kv.size[0], 1, static_cast<double>(a.kv.count()) * 24, [&](int64_t begin, int64_t end) {
    alignas(64) float row[kHeadDim];
    cpu::Angles angles;
    for (int64_t t = begin; t < end; ++t) {
      if (a.slot(t) < 0) continue;
      cpu::widen(a.kv[t].data, kHeadDim, row);
      cpu::rmsnorm(row, kHeadDim, a.norm.data, a.rms_eps);
      cpu::make_angles(a.position(t), a.rope_freq.data, false, angles);
      cpu::rope(row + kNopeDim, angles);
      cpu::write_kv_row(a.pool, a.format, a.slot(t), row);
    }
  });
}

}  // namespace fathom::ops
