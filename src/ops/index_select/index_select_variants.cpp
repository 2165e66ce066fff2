// The variants of index_query and index_select. All CUDA variants of index_select take up to 64 heads and a topk of up
// to 1024, rows of q at multiples of 8 bytes, and codes of queries and keys at multiples of 4. Pages, sequences, what
// is visible and positions are read before the previous kernel of the stream has ended: it must not write them. The
// workspace of index_select must be zeroed once before its first use and then belong to this op and one stream.
#include "ops/index_select/index_select.h"

#ifdef FATHOM_HAVE_CUDA
#include "ops/index_select/select_plan.h"
#endif

namespace fathom::ops {

void index_query_ref(const IndexQueryArgs& a, const Launch&);
void index_query_cpu(const IndexQueryArgs& a, const Launch& l);
void index_select_ref(const IndexSelectArgs& a, const Launch&);
void index_select_cpu(const IndexSelectArgs& a, const Launch& l);

#ifdef FATHOM_HAVE_CUDA
void index_query_sm80(const IndexQueryArgs& a, const Launch& l);
void index_select_sm80(const IndexSelectArgs& a, const Launch& l);
void index_select_sm90(const IndexSelectArgs& a, const Launch& l);

namespace {

bool query_sm80_can_run(const IndexQueryArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.q.size[2] == kIndexDim &&
         a.rope_freq.size[0] == 32 && a.q.stride[0] % 4 == 0 && a.q.stride[1] % 4 == 0 && a.codes.stride[0] % 2 == 0 &&
         a.codes.stride[1] % 2 == 0 && a.q.size[0] < 65536;
}

bool select_sm80_can_run(const IndexSelectArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.q.size[1] <= index_select::kMostHeads &&
         a.topk >= 1 && a.topk <= index_select::kMostTopk && a.keys.stride % 4 == 0 && a.q.stride[0] % 4 == 0 &&
         a.q.stride[1] % 4 == 0 && a.q.size[0] < 65536;
}

/// Products by warpgroups exist on sm_90 alone.
bool select_sm90_can_run(const IndexSelectArgs& a, const DeviceInfo& d) {
  return select_sm80_can_run(a, d) && d.compute_capability == 90;
}

template <bool kWide>
size_t select_workspace(const IndexSelectArgs& a, const DeviceInfo& d) {
  return index_select::workspace_for(a, d, index_select::kernel_for(a, d, kWide)).total;
}

}  // namespace
#endif

Variants<IndexQueryArgs> index_query_variants() {
  static constexpr Variant<IndexQueryArgs> all[] = {
      {"ref", Backend::cpu, always<IndexQueryArgs>, nullptr, index_query_ref},
      {"cpu", Backend::cpu, always<IndexQueryArgs>, nullptr, index_query_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, query_sm80_can_run, nullptr, index_query_sm80},
#endif
  };
  return all;
}

Variants<IndexSelectArgs> index_select_variants() {
  static constexpr Variant<IndexSelectArgs> all[] = {
      {"ref", Backend::cpu, always<IndexSelectArgs>, nullptr, index_select_ref},
      {"cpu", Backend::cpu, always<IndexSelectArgs>, nullptr, index_select_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, select_sm80_can_run, select_workspace<false>, index_select_sm80},
      {"sm90", Backend::cuda, select_sm90_can_run, select_workspace<true>, index_select_sm90},
#endif
  };
  return all;
}
}  // namespace fathom::ops
