#include "ops/device/launch.cuh"
#include "ops/index_select/few_kernel.cuh"
#include "ops/index_select/query_kernel.cuh"
#include "ops/index_select/select_kernel.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32 * index_query::kWarps) index_queries(const __grid_constant__ IndexQueryArgs a) {
  index_query::query_block(a, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}
/// Where two blocks a multiprocessor would take registers that the scores need, there is one.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 1000)
constexpr int kResident = 1;
#else
constexpr int kResident = 2;
#endif

__global__ void __launch_bounds__(index_select::kThreads, kResident)
    select_entries(const __grid_constant__ index_select::Params p) {
  __shared__ index_select::Shared shared;
  index_select::select_block(p, shared);
}

__global__ void __launch_bounds__(index_select::kThreads, 2)
    select_few(const __grid_constant__ index_select::Params p) {
  __shared__ index_select::FewShared shared;
  index_select::few_block(p, shared);
}

}  // namespace

void index_query_sm80(const IndexQueryArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.q.size[1], index_query::kWarps), static_cast<unsigned>(a.q.size[0]));
  device::launch("index_query", index_queries, {grid, 32 * index_query::kWarps, 0, l.device.compute_capability >= 90},
                 l.stream, a);
}

void index_select_sm80(const IndexSelectArgs& a, const Launch& l) {
  using namespace index_select;
  constexpr int64_t kPatience = 6000;  // cycles: about the time a block's scan differs from another's
  Params p;
  p.a = a, p.splits = splits_for(a, l.device), p.patience = kPatience;
  const Workspace w = workspace_for(a, l.device);
  const bool early = l.device.compute_capability >= 90;
  const auto grid = [&] { return dim3(static_cast<unsigned>(p.splits), static_cast<unsigned>(a.q.size[0])); };
  auto* base = static_cast<std::byte*>(l.workspace);
  if (const int few = few_splits(a, l.device); few > 0) {
    p.splits = few, p.exchange = reinterpret_cast<Exchange*>(base);
    p.scores = reinterpret_cast<uint16_t*>(base + w.counts_at);
    return device::launch("index_select", select_few, {grid(), kThreads, 0, early}, l.stream, p);
  }
  if (p.splits > 1) {
    p.exchange = reinterpret_cast<Exchange*>(base);
    p.counts = reinterpret_cast<uint32_t*>(base + w.counts_at);
    p.candidates = reinterpret_cast<Candidate*>(base + w.candidates_at);
  }
  // Two blocks a multiprocessor need 80 KB of shared memory there, more than the driver sets apart by itself.
  device::check("index_select", "division of the cache",
                cudaFuncSetAttribute(select_entries, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
  device::launch("index_select", select_entries, {grid(), kThreads, 0, early}, l.stream, p);
}

}  // namespace fathom::ops
