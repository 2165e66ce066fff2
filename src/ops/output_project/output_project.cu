// The CUDA variants of wo_a.
//
//   sm80   mma.sync bf16, any GPU since the A100
//   sm90   the same, starting while the previous kernel of the stream ends: that kernel must not write the weights;
//          on sm_90 by the streaming kernel of linear_fp8, where rows of weights follow each other
// Both give a token the same bits in every batch. The workspace, none where it streams, must be zeroed once before its
// first use and then belong to this op and one stream. o and the weights must begin at multiples of 16 bytes, and so
// must their rows.
#include "ops/device/launch.cuh"
#include "ops/output_project/output_project_kernel.cuh"
#include "ops/output_project/stream_params.h"

namespace fathom::ops {
namespace {

namespace op = output_projection;

template <int kTiles>
__global__ void __launch_bounds__(kTiles == 8 ? 256 : 128, kTiles == 8 ? 1 : 4)
    project_heads(const __grid_constant__ op::Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  op::project_block<kTiles>(p, shared);
}

void run(const OutputProjectArgs& a, const Launch& l, bool early) {
  if (a.o.size[0] == 0) return;
  const op::Plan plan = op::make_plan(a);
  const op::Params p = op::pack(a, plan, l.workspace);
  const device::LaunchShape shape{dim3(static_cast<unsigned>(plan.width), static_cast<unsigned>(plan.height),
                                       plan.split ? 1u << plan.log2_slices : 1u),
                                  plan.threads(), plan.shared_bytes, early};
  const auto kernel = plan.tiles == 1 ? project_heads<1> : plan.tiles == 2 ? project_heads<2> : project_heads<8>;
  device::launch("output_project", kernel, shape, l.stream, p);
}

bool streams(const OutputProjectArgs& a, const DeviceInfo& d) {
  return d.compute_capability == 90 && a.wo_a.codes.stride[0] == a.wo_a.codes.size[1];
}

void run_stream(const OutputProjectArgs& a, const Launch& l) {
  if (a.o.size[0] == 0) return;
  stream::Work work = op::pack_stream(a);
  const stream::Plan plan =
      stream::make_plan(stream::Input::bf16, work.row_tiles, work.params.units, work.params.tokens);
  stream::set_plan(work.params, plan);
  op::launch_stream(work.params, stream::describe_weights(work, device::describe_planes), op::results_of(a), plan,
                    l.stream);
}

}  // namespace

bool output_project_sm80_can_run(const OutputProjectArgs& a, const DeviceInfo& d) {
  const int64_t rows = a.wo_a.codes.size[0], columns = a.wo_a.codes.size[1];
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.o.size[2] == op::kHeadDim && a.groups > 0 &&
         a.o.size[1] % a.groups == 0 && columns == a.o.size[1] / a.groups * op::kHeadDim && rows % a.groups == 0 &&
         rows / a.groups % moe::kBlock == 0 && rows < op::kMostRows && a.o.stride[0] % 8 == 0 &&
         a.o.stride[1] % 8 == 0 && a.wo_a.codes.stride[0] % 16 == 0 && a.wo_a.codes.stride[0] < int64_t{1} << 24 &&
         a.z.stride[0] % 8 == 0 && a.z_codes.stride[0] % 8 == 0 && 128 * a.o.stride[0] < int64_t{1} << 32 &&
         a.o.size[0] < 65535 * 8;
}
bool output_project_sm90_can_run(const OutputProjectArgs& a, const DeviceInfo& d) {
  return d.compute_capability >= 90 && output_project_sm80_can_run(a, d);
}
size_t output_project_sm80_workspace(const OutputProjectArgs& a, const DeviceInfo&) {
  return op::workspace_bytes(a);
}
size_t output_project_sm90_workspace(const OutputProjectArgs& a, const DeviceInfo& d) {
  return streams(a, d) ? 0 : op::workspace_bytes(a);
}
void output_project_sm80(const OutputProjectArgs& a, const Launch& l) {
  run(a, l, false);
}
void output_project_sm90(const OutputProjectArgs& a, const Launch& l) {
  if (streams(a, l.device)) return run_stream(a, l);
  run(a, l, true);
}

}  // namespace fathom::ops
