#include "ops/compress/compress.h"

namespace fathom::ops {

void compress_ref(const CompressArgs& a, const Launch&);
void compress_cpu(const CompressArgs& a, const Launch& l);
bool compress_cpu_can_run(const CompressArgs& a, const DeviceInfo&);

Variants<CompressArgs> compress_variants() {
  static constexpr Variant<CompressArgs> all[] = {
      {"ref", Backend::cpu, always<CompressArgs>, nullptr, compress_ref},
      {"cpu", Backend::cpu, compress_cpu_can_run, nullptr, compress_cpu},
  };
  return all;
}
}  // namespace fathom::ops
