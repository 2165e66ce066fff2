#include "ops/experts/moe_launch.cuh"

namespace fathom::ops::moe {

void launch_fp8(const Params& p, const Plan& plan, bool early, void* stream) {
  launch_format<ExpertFormat::fp8>(p, plan, early, stream);
}

}  // namespace fathom::ops::moe
