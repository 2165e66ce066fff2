#include "ops/linear/linear.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
template <typename Args>
bool linear_sm80_can_run(const Args& a, const DeviceInfo& d);
bool linear_sm89_can_run(const LinearFp8Args& a, const DeviceInfo& d);
template <typename Args>
bool linear_sm90_can_run(const Args& a, const DeviceInfo& d);
void linear_fp8_sm80(const LinearFp8Args& a, const Launch& l);
void linear_fp8_sm89(const LinearFp8Args& a, const Launch& l);
void linear_fp8_sm90(const LinearFp8Args& a, const Launch& l);
void linear_fp8_sm90_fast(const LinearFp8Args& a, const Launch& l);
size_t linear_fp8_sm90_fast_workspace(const LinearFp8Args& a, const DeviceInfo& d);
void linear_bf16_sm80(const LinearBf16Args& a, const Launch& l);
void linear_bf16_sm90(const LinearBf16Args& a, const Launch& l);
void linear_f32_sm80(const LinearF32Args& a, const Launch& l);
void linear_f32_sm90(const LinearF32Args& a, const Launch& l);
#endif

void linear_fp8_ref(const LinearFp8Args& a, const Launch&);
void linear_fp8_cpu(const LinearFp8Args& a, const Launch& l);
size_t linear_fp8_cpu_workspace(const LinearFp8Args& a, const DeviceInfo&);

Variants<LinearFp8Args> linear_fp8_variants() {
  static constexpr Variant<LinearFp8Args> all[] = {
      {"ref", Backend::cpu, always<LinearFp8Args>, nullptr, linear_fp8_ref},
      {"cpu", Backend::cpu, always<LinearFp8Args>, linear_fp8_cpu_workspace, linear_fp8_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, linear_sm80_can_run<LinearFp8Args>, nullptr, linear_fp8_sm80},
      {"sm89", Backend::cuda, linear_sm89_can_run, nullptr, linear_fp8_sm89},
      {"sm90", Backend::cuda, linear_sm90_can_run<LinearFp8Args>, nullptr, linear_fp8_sm90},
      {"sm90_fast", Backend::cuda, linear_sm90_can_run<LinearFp8Args>, linear_fp8_sm90_fast_workspace,
       linear_fp8_sm90_fast},
#endif
  };
  return all;
}

void linear_bf16_ref(const LinearBf16Args& a, const Launch&);
void linear_bf16_cpu(const LinearBf16Args& a, const Launch& l);
size_t linear_bf16_cpu_workspace(const LinearBf16Args& a, const DeviceInfo&);

Variants<LinearBf16Args> linear_bf16_variants() {
  static constexpr Variant<LinearBf16Args> all[] = {
      {"ref", Backend::cpu, always<LinearBf16Args>, nullptr, linear_bf16_ref},
      {"cpu", Backend::cpu, always<LinearBf16Args>, linear_bf16_cpu_workspace, linear_bf16_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, linear_sm80_can_run<LinearBf16Args>, nullptr, linear_bf16_sm80},
      {"sm90", Backend::cuda, linear_sm90_can_run<LinearBf16Args>, nullptr, linear_bf16_sm90},
#endif
  };
  return all;
}

void linear_f32_ref(const LinearF32Args& a, const Launch&);
void linear_f32_cpu(const LinearF32Args& a, const Launch& l);
size_t linear_f32_cpu_workspace(const LinearF32Args& a, const DeviceInfo&);

Variants<LinearF32Args> linear_f32_variants() {
  static constexpr Variant<LinearF32Args> all[] = {
      {"ref", Backend::cpu, always<LinearF32Args>, nullptr, linear_f32_ref},
      {"cpu", Backend::cpu, always<LinearF32Args>, linear_f32_cpu_workspace, linear_f32_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, linear_sm80_can_run<LinearF32Args>, nullptr, linear_f32_sm80},
      {"sm90", Backend::cuda, linear_sm90_can_run<LinearF32Args>, nullptr, linear_f32_sm90},
#endif
  };
  return all;
}
}  // namespace fathom::ops
