#include "ops/linear/linear.h"

namespace fathom::ops {

void linear_fp8_ref(const LinearFp8Args& a, const Launch&);

Variants<LinearFp8Args> linear_fp8_variants() {
  static constexpr Variant<LinearFp8Args> all[] = {
      {"ref", Backend::cpu, always<LinearFp8Args>, nullptr, linear_fp8_ref},
  };
  return all;
}

void linear_bf16_ref(const LinearBf16Args& a, const Launch&);

Variants<LinearBf16Args> linear_bf16_variants() {
  static constexpr Variant<LinearBf16Args> all[] = {
      {"ref", Backend::cpu, always<LinearBf16Args>, nullptr, linear_bf16_ref},
  };
  return all;
}

void linear_f32_ref(const LinearF32Args& a, const Launch&);

Variants<LinearF32Args> linear_f32_variants() {
  static constexpr Variant<LinearF32Args> all[] = {
      {"ref", Backend::cpu, always<LinearF32Args>, nullptr, linear_f32_ref},
  };
  return all;
}
}  // namespace fathom::ops
