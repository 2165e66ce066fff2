#include "ops/linear/gemm_launch.cuh"

namespace fathom::ops::gemm {

void launch_e4m3_wide(const Params& p, const Plan& plan, void* stream) {
  launch_kind<Math::e4m3_wide>(p, plan, stream);
}

}  // namespace fathom::ops::gemm
