#include "ops/query/query.h"

namespace fathom::ops {

void query_ref(const QueryArgs& a, const Launch&);

Variants<QueryArgs> query_variants() {
  static constexpr Variant<QueryArgs> all[] = {
      {"ref", Backend::cpu, always<QueryArgs>, nullptr, query_ref},
  };
  return all;
}
}  // namespace fathom::ops
