#include "ops/query/query.h"

namespace fathom::ops {

void query_ref(const QueryArgs& a, const Launch&);
void query_cpu(const QueryArgs& a, const Launch& l);

Variants<QueryArgs> query_variants() {
  static constexpr Variant<QueryArgs> all[] = {
      {"ref", Backend::cpu, always<QueryArgs>, nullptr, query_ref},
      {"cpu", Backend::cpu, always<QueryArgs>, nullptr, query_cpu},
  };
  return all;
}
}  // namespace fathom::ops
