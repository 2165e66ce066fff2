#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"
#include "ops/query/query.h"

namespace fathom::ops {

void query_ref(const QueryArgs& a, const Launch&);

void query_cpu(const QueryArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return query_ref(a, l);
  const int64_t heads = a.q.size[1];
  cpu::split(a.q.size[0], 1, static_cast<double>(a.q.count()) * 16, [&](int64_t begin, int64_t end) {
    cpu::Angles angles;
    for (int64_t t = begin; t < end; ++t) {
      cpu::make_angles(a.position(t), a.rope_freq.data, false, angles);
      for (int64_t h = 0; h < heads; ++h) cpu::query_head(a.q[t][h].data, a.rms_eps, a.bf16_steps, angles);
    }
  });
}

}  // namespace fathom::ops
