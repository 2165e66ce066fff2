// The variants of window_write. sm80 wants rows of kv at multiples of 16 bytes and pages at multiples of 32.
// Positions and slots are read before the previous kernel of the stream has ended: it must not write them.
#include "ops/window_write/window_write.h"

namespace fathom::ops {

void window_write_ref(const WindowWriteArgs& a, const Launch&);
void window_write_cpu(const WindowWriteArgs& a, const Launch& l);

#ifdef FATHOM_HAVE_CUDA
void window_write_sm80(const WindowWriteArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const WindowWriteArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.kv.size[1] == kHeadDim &&
         a.rope_freq.size[0] == 32 && a.kv.stride[0] % 8 == 0 && a.pool.stride % 32 == 0;
}

}  // namespace
#endif

Variants<WindowWriteArgs> window_write_variants() {
  static constexpr Variant<WindowWriteArgs> all[] = {
      {"ref", Backend::cpu, always<WindowWriteArgs>, nullptr, window_write_ref},
      {"cpu", Backend::cpu, always<WindowWriteArgs>, nullptr, window_write_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, nullptr, window_write_sm80},
#endif
  };
  return all;
}
}  // namespace fathom::ops
