#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"
#include "ops/quantize/quantize.h"

namespace fathom::ops {

void quantize_ref(const QuantizeArgs& a, const Launch&);

namespace {
struct RowScratch;
}

void quantize_cpu(const QuantizeArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return quantize_ref(a, l);
  const int64_t n = a.x.size[1];
  cpu::split(a.x.size[0], 1, static_cast<double>(a.x.count()) * 16, [&](int64_t begin, int64_t end) {
    auto* row = reinterpret_cast<float*>(cpu::thread_scratch<RowScratch>(static_cast<size_t>(n) * sizeof(float)));
    for (int64_t t = begin; t < end; ++t) {
      cpu::widen(a.x[t].data, n, row);
      if (a.norm.data) cpu::rmsnorm(row, n, a.norm.data, a.rms_eps);
      cpu::act_quant(row, n, a.codes[t].data, a.scale[t].data);
    }
  });
}

}  // namespace fathom::ops
