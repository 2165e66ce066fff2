#include "ops/head/head.h"

namespace fathom::ops {

void head_ref(const HeadArgs& a, const Launch&);
void head_cpu(const HeadArgs& a, const Launch& l);
bool head_cpu_can_run(const HeadArgs& a, const DeviceInfo&);
size_t head_cpu_workspace(const HeadArgs& a, const DeviceInfo&);

Variants<HeadArgs> head_variants() {
  static constexpr Variant<HeadArgs> all[] = {
      {"ref", Backend::cpu, always<HeadArgs>, nullptr, head_ref},
      {"cpu", Backend::cpu, head_cpu_can_run, head_cpu_workspace, head_cpu},
  };
  return all;
}
}  // namespace fathom::ops
