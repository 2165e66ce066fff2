#include "ops/cpu/project.h"
#include "ops/cpu/rows.h"
#include "ops/output_project/output_project.h"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&);

bool output_project_cpu_can_run(const OutputProjectArgs& a, const DeviceInfo&) {
  return a.o.size[2] % 32 == 0 && a.groups > 0 && a.groups <= 64;
}

size_t output_project_cpu_workspace(const OutputProjectArgs& a, const DeviceInfo&) {
  return cpu::project_workspace(a.o.size[0], a.o.size[1] * a.o.size[2]);
}

void output_project_cpu(const OutputProjectArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return output_project_ref(a, l);
  const int64_t heads = a.o.size[1], dim = a.o.size[2], rank = a.wo_a.codes.size[0] / a.groups;
  const int64_t width = a.groups * rank;
  cpu::Part parts[64];
  for (int32_t g = 0; g < a.groups; ++g) parts[g] = {cpu::matrix(a.wo_a, g * rank, rank), g * (heads / a.groups) * dim};
  cpu::project(
      a.o.size[0], heads * dim, std::span<const cpu::Part>(parts, static_cast<size_t>(a.groups)),
      [&](int64_t t, float* out) {
        for (int64_t h = 0; h < heads; ++h) cpu::prepare_bf16(a.o[t][h].data, dim, out + h * dim);
      },
      [&](size_t g, int64_t t, int64_t n0, int64_t n1, const float* y) {
        cpu::store_bf16(y, n1 - n0, a.z[t].data + static_cast<int64_t>(g) * rank + n0);
      },
      l.workspace,
      [&](int64_t t) {
        float part[1024];  // whole quantisation groups
        for (int64_t i = 0; i < width; i += 1024) {
          const int64_t n = std::min<int64_t>(1024, width - i);
          cpu::widen(a.z[t].data + i, n, part);
          cpu::act_quant(part, n, a.z_codes[t].data + i, a.z_scale[t].data + i / 128);
        }
      });
}

}  // namespace fathom::ops
