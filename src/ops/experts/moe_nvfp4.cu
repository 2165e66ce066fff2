#include "ops/experts/moe_launch.cuh"

namespace fathom::ops::moe {

void launch_nvfp4(const Params& p, const Plan& plan, bool early, void* stream) {
  launch_format<ExpertFormat::nvfp4>(p, plan, early, stream);
}

}  // namespace fathom::ops::moe
