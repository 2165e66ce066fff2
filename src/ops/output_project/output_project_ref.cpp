#include "base/threads.h"
#include "ops/exact.h"
#include "ops/output_project/output_project.h"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&) {
  const int64_t dim = a.o.size[2], heads = a.o.size[1] / a.groups, width = heads * dim;
  const int64_t rank = a.wo_a.codes.size[0] / a.groups;
  parallel_for(a.o.size[0], 1, [&](int64_t t, int64_t) {
    std::vector<float> z(static_cast<size_t>(a.groups * rank));
    for (int64_t n = 0; n < a.groups * rank; ++n) {
      const int64_t group = n / rank;
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) {
        const float w = to_float(a.wo_a.codes(n, i)) * to_float(a.wo_a.scale(n / 128, i / 128));
        sum += double{to_float(a.o(t, group * heads + i / dim, i % dim))} * double{w};
      }
      z[static_cast<size_t>(n)] = round_bf16(static_cast<float>(sum));
      a.z(t, n) = to_bf16(z[static_cast<size_t>(n)]);
    }
    exact::act_quant(z, &a.z_codes(t, 0), &a.z_scale(t, 0));
  });
}

}  // namespace fathom::ops
