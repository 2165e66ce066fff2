#include "ops/window_write/window_write.h"

namespace fathom::ops {

void window_write_ref(const WindowWriteArgs& a, const Launch&);
void window_write_cpu(const WindowWriteArgs& a, const Launch& l);

Variants<WindowWriteArgs> window_write_variants() {
  static constexpr Variant<WindowWriteArgs> all[] = {
      {"ref", Backend::cpu, always<WindowWriteArgs>, nullptr, window_write_ref},
      {"cpu", Backend::cpu, always<WindowWriteArgs>, nullptr, window_write_cpu},
  };
  return all;
}
}  // namespace fathom::ops
