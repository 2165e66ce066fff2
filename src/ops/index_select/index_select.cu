#include "ops/device/launch.cuh"
#include "ops/index_select/query_kernel.cuh"
#include "ops/index_select/select_kernel.cuh"
#include "ops/index_select/warp_scan.cuh"
#include "ops/index_select/wide_scan.cuh"

namespace fathom::ops {
namespace {

__global__ void __launch_bounds__(32 * index_query::kWarps) index_queries(const __grid_constant__ IndexQueryArgs a) {
  index_query::query_block(a, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}
/// Where two blocks a multiprocessor would take registers that the scores need, there is one. (On sm_90 the warpgroup
/// kernels below do the work, two of them.)
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 900)
constexpr int kResident = 1;
#else
constexpr int kResident = 2;
#endif

__global__ void __launch_bounds__(index_select::kThreads, kResident)
    select_entries(const __grid_constant__ index_select::Params p) {
  __shared__ index_select::WarpScan shared;
  index_select::select_block<false, true>(p, shared);
}

__global__ void __launch_bounds__(index_select::kThreads, 2)
    select_few_entries(const __grid_constant__ index_select::Params p) {
  __shared__ index_select::FewScan shared;
  index_select::select_block<true, false>(p, shared);
}

__global__ void __launch_bounds__(index_select::kThreads, 2)
    select_many_entries(const __grid_constant__ index_select::Params p) {
  __shared__ index_select::WarpKeys<index_select::Selection, index_select::kManyEntries> shared;
  index_select::select_block<true, false>(p, shared);
}

/// sm_90a; elsewhere it is never launched.
__global__ void __launch_bounds__(index_select::kThreads, 2)
    select_wide(const __grid_constant__ index_select::Params p) {
#ifdef FATHOM_WGMMA
  __shared__ index_select::WideScan shared;
  index_select::select_block(p, shared);
#endif
}

}  // namespace

void index_query_sm80(const IndexQueryArgs& a, const Launch& l) {
  const dim3 grid(device::blocks_for(a.q.size[1], index_query::kWarps), static_cast<unsigned>(a.q.size[0]));
  device::launch("index_query", index_queries,
                 {grid, 32 * index_query::kWarps, 0, l.device.compute_capability >= 90, true}, l.stream, a);
}

namespace {

void launch_select(const IndexSelectArgs& a, const Launch& l, bool wide) {
  using namespace index_select;
  constexpr int64_t kPatience = 12000;  // cycles: more than a block's scan differs from another's
  const Kernel which = kernel_for(a, l.device, wide);
  Params p;
  p.a = a, p.splits = splits_for(a, l.device, which), p.rank = rank_for(a.topk, p.splits), p.patience = kPatience;
  p.page_rows = divisor_of(a.keys.page_rows);
  const Workspace w = workspace_for(a, l.device, which);
  if (w.total > 0) {
    auto* base = static_cast<std::byte*>(l.workspace);
    p.exchange = reinterpret_cast<Exchange*>(base);
    p.counts = reinterpret_cast<uint32_t*>(base + w.counts_at);
    p.candidates = reinterpret_cast<Candidate*>(base + w.candidates_at);
    if (w.keys_each > 0) {
      p.keys = reinterpret_cast<uint16_t*>(base + w.keys_at), p.keys_each = w.keys_each;
      p.largest = reinterpret_cast<uint16_t*>(base + w.largest_at);
    }
  }
  const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(a.q.size[0]));
  const auto kernel = which == Kernel::few    ? select_few_entries
                      : which == Kernel::many ? select_many_entries
                      : which == Kernel::wide ? select_wide
                                              : select_entries;
  // Two blocks a multiprocessor need 80 KB of shared memory there, more than the driver sets apart by itself.
  device::launch("index_select", kernel,
                 {.grid = grid, .threads = kThreads, .early = l.device.compute_capability >= 90, .most_shared = true},
                 l.stream, p);
}

}  // namespace

void index_select_sm80(const IndexSelectArgs& a, const Launch& l) {
  launch_select(a, l, false);
}
void index_select_sm90(const IndexSelectArgs& a, const Launch& l) {
  launch_select(a, l, true);
}

}  // namespace fathom::ops
