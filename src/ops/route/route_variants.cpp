// The variants of route. The CUDA ones are the fp32-accurate product of that name and a kernel that chooses; they want
// rows at multiples of 16 bytes and at most 512 experts. sm90 does both in one launch for few tokens; its workspace
// must be zeroed once and then belong to this op and one stream. Token ids of hash layers are read before the product
// has ended.
#include "ops/route/route.h"

#include "ops/linear/linear.h"

namespace fathom::ops {

void route_ref(const RouteArgs& a, const Launch&);
void route_cpu(const RouteArgs& a, const Launch& l);
size_t route_cpu_workspace(const RouteArgs& a, const DeviceInfo&);

#ifdef FATHOM_HAVE_CUDA
void launch_choose_experts(const RouteArgs& a, const Launch& l);
/// Product and choice together; false where they cannot be, and nothing was done.
bool launch_route_few(const RouteArgs& a, const Launch& l);

namespace {

constexpr char kSm80[] = "sm80", kSm90[] = "sm90";

LinearF32Args product(const RouteArgs& a) {
  LinearF32Args p;
  p.x = a.x;
  p.part[p.parts++] = {a.gate, a.scores};
  return p;
}

template <const char* kName>
bool can_run(const RouteArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && a.gate.size[0] <= 512 && a.expert.size[1] <= 32 &&
         a.expert.size[1] <= a.gate.size[0] && find_variant(linear_f32_variants(), kName)->can_run(product(a), d);
}
size_t workspace(const RouteArgs&, const DeviceInfo&) {
  return sizeof(uint32_t);
}
template <const char* kName>
void run(const RouteArgs& a, const Launch& l) {
  if (kName == kSm90 && launch_route_few(a, l)) return;
  find_variant(linear_f32_variants(), kName)->run(product(a), l);
  launch_choose_experts(a, l);
}

}  // namespace
#endif

Variants<RouteArgs> route_variants() {
  static constexpr Variant<RouteArgs> all[] = {
      {"ref", Backend::cpu, always<RouteArgs>, nullptr, route_ref},
      {"cpu", Backend::cpu, always<RouteArgs>, route_cpu_workspace, route_cpu},
#ifdef FATHOM_HAVE_CUDA
      {kSm80, Backend::cuda, can_run<kSm80>, nullptr, run<kSm80>},
      {kSm90, Backend::cuda, can_run<kSm90>, workspace, run<kSm90>},
#endif
  };
  return all;
}
}  // namespace fathom::ops
