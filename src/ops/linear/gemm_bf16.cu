#include "ops/linear/gemm_launch.cuh"

namespace fathom::ops::gemm {

void launch_bf16(const Params& p, const Plan& plan, void* stream) {
  launch_kind<Math::bf16>(p, plan, stream);
}

}  // namespace fathom::ops::gemm
