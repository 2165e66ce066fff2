#include "ops/quantize/quantize.h"

namespace fathom::ops {

void quantize_ref(const QuantizeArgs& a, const Launch&);
void quantize_cpu(const QuantizeArgs& a, const Launch& l);

#ifdef FATHOM_HAVE_CUDA
bool quantize_sm80_can_run(const QuantizeArgs& a, const DeviceInfo&);
void quantize_sm80(const QuantizeArgs& a, const Launch& l);
bool quantize_sm90_can_run(const QuantizeArgs& a, const DeviceInfo&);
void quantize_sm90(const QuantizeArgs& a, const Launch& l);
#endif

Variants<QuantizeArgs> quantize_variants() {
  static constexpr Variant<QuantizeArgs> all[] = {
      {"ref", Backend::cpu, always<QuantizeArgs>, nullptr, quantize_ref},
      {"cpu", Backend::cpu, always<QuantizeArgs>, nullptr, quantize_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, quantize_sm80_can_run, nullptr, quantize_sm80},
      {"sm90", Backend::cuda, quantize_sm90_can_run, nullptr, quantize_sm90},
#endif
  };
  return all;
}
}  // namespace fathom::ops
