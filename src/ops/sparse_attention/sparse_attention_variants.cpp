// The variants of sparse attention.
//
//   ref, cpu   on the CPU
//   sm80       the portable CUDA kernel (sm_80 and later, 99 KB of shared memory): the plan follows the batch
//   sm90       sm_90a: the same and the warpgroup kernel, whichever the plan expects to be faster
//   exact      a plan that does not depend on the batch: a token's result has the same bits alone and in any batch
//
// The workspace of the CUDA variants is to be filled with zeros once, when it is allocated; then it serves calls of any
// shapes, one at a time (decode_plan.h).
#include "ops/sparse_attention/sparse_attention.h"

#ifdef FATHOM_HAVE_CUDA
#include "ops/sparse_attention/decode_plan.h"
#endif

namespace fathom::ops {

void sparse_attention_ref(const SparseAttentionArgs& a, const Launch&);
void sparse_attention_cpu(const SparseAttentionArgs& a, const Launch& l);

#ifdef FATHOM_HAVE_CUDA
namespace {

using sparse_decode::Plan;

constexpr int64_t kSharedBytes = 99 * 1024;

Plan portable_plan(const SparseAttentionArgs& a, const DeviceInfo& d) {
  return sparse_decode::choose_plan(a, d, false);
}
Plan sm90_plan(const SparseAttentionArgs& a, const DeviceInfo& d) {
  return sparse_decode::choose_plan(a, d, true);
}

bool can_run(const SparseAttentionArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && d.shared_bytes >= kSharedBytes &&
         sparse_decode::shapes_fit(a);
}

bool can_run_sm90(const SparseAttentionArgs& a, const DeviceInfo& d) {
  return d.compute_capability == 90 && d.shared_bytes >= 2 * kSharedBytes && can_run(a, d);
}

template <Plan (*kChoose)(const SparseAttentionArgs&, const DeviceInfo&)>
size_t workspace(const SparseAttentionArgs& a, const DeviceInfo& d) {
  return sparse_decode::workspace_for(a, kChoose(a, d)).total;
}

template <Plan (*kChoose)(const SparseAttentionArgs&, const DeviceInfo&)>
void run(const SparseAttentionArgs& a, const Launch& l) {
  sparse_decode::run_plan(a, l, kChoose(a, l.device));
}

}  // namespace
#endif

Variants<SparseAttentionArgs> sparse_attention_variants() {
  static constexpr Variant<SparseAttentionArgs> all[] = {
      {"ref", Backend::cpu, always<SparseAttentionArgs>, nullptr, sparse_attention_ref},
      {"cpu", Backend::cpu, always<SparseAttentionArgs>, nullptr, sparse_attention_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, can_run, workspace<portable_plan>, run<portable_plan>},
      {"sm90", Backend::cuda, can_run_sm90, workspace<sm90_plan>, run<sm90_plan>},
      {"exact", Backend::cuda, can_run, workspace<sparse_decode::choose_exact_plan>,
       run<sparse_decode::choose_exact_plan>},
#endif
  };
  return all;
}

}  // namespace fathom::ops
