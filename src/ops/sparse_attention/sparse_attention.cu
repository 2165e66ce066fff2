// Launches of the decode kernel: instances, shared memory, workspace.
#include "ops/sparse_attention/decode_kernel.cuh"
#include "ops/sparse_attention/decode_launch.cuh"
#include "ops/sparse_attention/decode_pack.h"

namespace fathom::ops::sparse_decode {
namespace {

template <typename G>
__global__ void __launch_bounds__(kThreads, kResident<G>) decode(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::byte shared[];
  decode_block<G>(p, shared);
}

template <typename G>
void launch(const Params& p, const Plan& plan, int tokens, void* stream) {
  launch(decode<G>, p, plan, G::kHeads, kThreads, G::kSharedBytes, tokens, stream);
}

}  // namespace

void run_plan(const SparseAttentionArgs& args, const Launch& to, const Plan& plan) {
  if (args.q.size[0] == 0 || args.q.size[1] == 0) return;
  Params p = pack(args);
  const int tokens = static_cast<int>(args.q.size[0]) / plan.pack;
  const Workspace space = workspace_for(args, plan);
  auto* base = static_cast<std::byte*>(to.workspace);
  p.arrivals = reinterpret_cast<uint64_t*>(base);
  if (plan.mail) {
    p.mail = reinterpret_cast<MailCount*>(base + space.mail_at);
    p.places = base + space.place_at, p.place_bytes = static_cast<int64_t>(space.place_bytes);
    p.all_blocks = plan.splits * tokens * ((p.heads + plan.block_heads - 1) / plan.block_heads);
  }
  p.state = reinterpret_cast<float*>(base + space.state_at);
  p.partial = reinterpret_cast<uint64_t*>(base + space.partial_at);
  p.patience = plan.patience;
  if (plan.pack > 1) pack_requests(p, plan.pack);
  divide(p, plan.wide && !plan.burst ? 64 : 16, plan.splits);
  void* stream = to.stream;
  if (plan.wide && plan.burst > 0) {
    launch_wide_burst(p, plan, tokens, stream);
  } else if (plan.wide) {
    launch_wide(p, plan, tokens, stream);
  } else if (plan.cluster > 0) {
    launch_cluster(p, plan, tokens, stream);
  } else if (plan.burst > 0) {
    launch_burst(p, plan, tokens, stream);
  } else if (plan.pack > 1) {
    launch<V4Packed32>(p, plan, tokens, stream);
  } else if (args.format == RowFormat::v4) {
    if (plan.block_heads == 16)
      launch<V4Heads16>(p, plan, tokens, stream);
    else if (plan.block_heads == 32)
      launch<V4Heads32>(p, plan, tokens, stream);
    else
      launch<V4Heads64>(p, plan, tokens, stream);
  } else if (plan.block_heads == 16) {
    launch<Bf16Heads16>(p, plan, tokens, stream);
  } else {
    launch<Bf16Heads32>(p, plan, tokens, stream);
  }
}

}  // namespace fathom::ops::sparse_decode
