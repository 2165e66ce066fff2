#include "ops/exact_rows.h"
#include "ops/window_write/window_write.h"

namespace fathom::ops {

void window_write_ref(const WindowWriteArgs& a, const Launch&) {
  for (int64_t t = 0; t < a.kv.size[0]; ++t) {
    if (a.slot(t) < 0) continue;
    auto row = exact::widen(a.kv[t]);
    exact::rmsnorm(row, a.norm, a.rms_eps);
    exact::rope(std::span(row).last(kRopeDim), a.position(t), a.rope_freq);
    exact::write_kv_row(a.pool, a.format, a.slot(t), row);
  }
}

}  // namespace fathom::ops
