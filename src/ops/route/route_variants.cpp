#include "ops/route/route.h"

namespace fathom::ops {

void route_ref(const RouteArgs& a, const Launch&);
void route_cpu(const RouteArgs& a, const Launch& l);
size_t route_cpu_workspace(const RouteArgs& a, const DeviceInfo&);

Variants<RouteArgs> route_variants() {
  static constexpr Variant<RouteArgs> all[] = {
      {"ref", Backend::cpu, always<RouteArgs>, nullptr, route_ref},
      {"cpu", Backend::cpu, always<RouteArgs>, route_cpu_workspace, route_cpu},
  };
  return all;
}
}  // namespace fathom::ops
