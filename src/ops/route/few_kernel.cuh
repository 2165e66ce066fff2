// The router of few tokens in one launch (sm_90): the product's last block chooses.
#pragma once

#include "ops/device/last_block.cuh"
#include "ops/linear/gemm_wide.cuh"
#include "ops/route/route_kernel.cuh"

namespace fathom::ops::route {

struct FewParams {
  gemm::Params product;
  RouteArgs a;
  uint32_t* arrivals = nullptr;  // 0 before and after a launch
  uint32_t blocks = 0;
};

/// False where there are too many tokens, or other blocks than those that choose.
inline bool lay_out(const RouteArgs& a, const DeviceInfo& device, FewParams& p, gemm::Plan& plan) {
  LinearF32Args product;
  product.x = a.x;
  product.part[product.parts++] = {a.gate, a.scores};
  p.product = gemm::pack(product), p.a = a;
  const int tokens = p.product.tokens;
  if (tokens == 0 || tokens > kFewTokens) return false;
  plan = gemm::make_plan(gemm::Math::bf16_wide, p.product.groups, p.product.units, tokens, device, true);
  if (plan.tiles != 1 || plan.threads() != kThreads) return false;
  plan.early = true;
  gemm::set_plan(p.product, plan);
  p.blocks = static_cast<uint32_t>((p.product.groups + plan.group_warps - 1) / plan.group_warps * plan.cluster);
  return true;
}

/// Grid as for the product. Token ids are read before the previous kernel has ended.
FATHOM_DEVICE void few_block(const FewParams& p, std::byte* shared) {
  const Known first = load_known(p.a, 0);
  gemm::wide_block<gemm::Math::bf16_wide, 1>(p.product, shared);
  if (!device::last_block(p.arrivals, p.blocks, reinterpret_cast<uint32_t*>(shared))) return;
  for (int t = 0; t < p.product.tokens; ++t) {
    device::sync_block();
    choose_token(p.a, t, t == 0 ? first : load_known(p.a, t), *reinterpret_cast<Shared*>(shared));
  }
}

}  // namespace fathom::ops::route
