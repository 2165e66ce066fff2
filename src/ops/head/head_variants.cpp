// The variants of head. The CUDA ones differ in the product they use, and want rows at multiples of 16 bytes.
#include "ops/head/head.h"

namespace fathom::ops {

void head_ref(const HeadArgs& a, const Launch&);
void head_cpu(const HeadArgs& a, const Launch& l);
bool head_cpu_can_run(const HeadArgs& a, const DeviceInfo&);
size_t head_cpu_workspace(const HeadArgs& a, const DeviceInfo&);

#ifdef FATHOM_HAVE_CUDA
bool head_cuda_can_run(const HeadArgs& a, const DeviceInfo& d, const char* name);
size_t head_cuda_workspace(const HeadArgs& a, const DeviceInfo&);
void head_cuda(const HeadArgs& a, const Launch& l, const char* name);

namespace {

constexpr char kSm80[] = "sm80", kSm90[] = "sm90";

template <const char* kName>
bool can_run(const HeadArgs& a, const DeviceInfo& d) {
  return head_cuda_can_run(a, d, kName);
}
template <const char* kName>
void run(const HeadArgs& a, const Launch& l) {
  head_cuda(a, l, kName);
}

}  // namespace
#endif

Variants<HeadArgs> head_variants() {
  static constexpr Variant<HeadArgs> all[] = {
      {"ref", Backend::cpu, always<HeadArgs>, nullptr, head_ref},
      {"cpu", Backend::cpu, head_cpu_can_run, head_cpu_workspace, head_cpu},
#ifdef FATHOM_HAVE_CUDA
      {kSm80, Backend::cuda, can_run<kSm80>, head_cuda_workspace, run<kSm80>},
      {kSm90, Backend::cuda, can_run<kSm90>, head_cuda_workspace, run<kSm90>},
#endif
  };
  return all;
}
}  // namespace fathom::ops
