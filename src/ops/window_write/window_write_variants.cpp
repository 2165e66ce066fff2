#include "ops/window_write/window_write.h"

namespace fathom::ops {

void window_write_ref(const WindowWriteArgs& a, const Launch&);

Variants<WindowWriteArgs> window_write_variants() {
  static constexpr Variant<WindowWriteArgs> all[] = {
      {"ref", Backend::cpu, always<WindowWriteArgs>, nullptr, window_write_ref},
  };
  return all;
}
}  // namespace fathom::ops
