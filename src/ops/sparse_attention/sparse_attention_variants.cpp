#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops {

void sparse_attention_ref(const SparseAttentionArgs& a, const Launch&);

Variants<SparseAttentionArgs> sparse_attention_variants() {
  static constexpr Variant<SparseAttentionArgs> all[] = {
      {"ref", Backend::cpu, always<SparseAttentionArgs>, nullptr, sparse_attention_ref},
  };
  return all;
}
}  // namespace fathom::ops
