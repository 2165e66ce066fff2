#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops {

void sparse_attention_ref(const SparseAttentionArgs& a, const Launch&);
void sparse_attention_cpu(const SparseAttentionArgs& a, const Launch& l);

Variants<SparseAttentionArgs> sparse_attention_variants() {
  static constexpr Variant<SparseAttentionArgs> all[] = {
      {"ref", Backend::cpu, always<SparseAttentionArgs>, nullptr, sparse_attention_ref},
      {"cpu", Backend::cpu, always<SparseAttentionArgs>, nullptr, sparse_attention_cpu},
  };
  return all;
}
}  // namespace fathom::ops
