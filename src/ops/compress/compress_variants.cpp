#include "ops/compress/compress.h"

namespace fathom::ops {

void compress_ref(const CompressArgs& a, const Launch&);

Variants<CompressArgs> compress_variants() {
  static constexpr Variant<CompressArgs> all[] = {
      {"ref", Backend::cpu, always<CompressArgs>, nullptr, compress_ref},
  };
  return all;
}
}  // namespace fathom::ops
