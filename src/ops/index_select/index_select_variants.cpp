#include "ops/index_select/index_select.h"

namespace fathom::ops {

void index_query_ref(const IndexQueryArgs& a, const Launch&);
void index_query_cpu(const IndexQueryArgs& a, const Launch& l);

Variants<IndexQueryArgs> index_query_variants() {
  static constexpr Variant<IndexQueryArgs> all[] = {
      {"ref", Backend::cpu, always<IndexQueryArgs>, nullptr, index_query_ref},
      {"cpu", Backend::cpu, always<IndexQueryArgs>, nullptr, index_query_cpu},
  };
  return all;
}

void index_select_ref(const IndexSelectArgs& a, const Launch&);
void index_select_cpu(const IndexSelectArgs& a, const Launch& l);

Variants<IndexSelectArgs> index_select_variants() {
  static constexpr Variant<IndexSelectArgs> all[] = {
      {"ref", Backend::cpu, always<IndexSelectArgs>, nullptr, index_select_ref},
      {"cpu", Backend::cpu, always<IndexSelectArgs>, nullptr, index_select_cpu},
  };
  return all;
}
}  // namespace fathom::ops
