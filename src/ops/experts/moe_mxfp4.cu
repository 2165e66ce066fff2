#include "ops/experts/moe_launch.cuh"

namespace fathom::ops::moe {

void launch_mxfp4(const Params& p, const Plan& plan, bool early, void* stream) {
  launch_format<ExpertFormat::mxfp4>(p, plan, early, stream);
}

}  // namespace fathom::ops::moe
