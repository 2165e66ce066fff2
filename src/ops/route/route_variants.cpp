#include "ops/route/route.h"

namespace fathom::ops {

void route_ref(const RouteArgs& a, const Launch&);

Variants<RouteArgs> route_variants() {
  static constexpr Variant<RouteArgs> all[] = {
      {"ref", Backend::cpu, always<RouteArgs>, nullptr, route_ref},
  };
  return all;
}
}  // namespace fathom::ops
