// The variants of query. sm80 wants heads that begin at multiples of 16 bytes. Positions are read before the previous
// kernel of the stream has ended: it must not write them.
#include "ops/query/query.h"

namespace fathom::ops {

void query_ref(const QueryArgs& a, const Launch&);
void query_cpu(const QueryArgs& a, const Launch& l);

#ifdef FATHOM_HAVE_CUDA
void query_sm80(const QueryArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const QueryArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.q.size[2] == 512 && a.rope_freq.size[0] == 32 &&
         a.q.stride[0] % 8 == 0 && a.q.stride[1] % 8 == 0 && a.q.size[0] < 65536;
}

}  // namespace
#endif

Variants<QueryArgs> query_variants() {
  static constexpr Variant<QueryArgs> all[] = {
      {"ref", Backend::cpu, always<QueryArgs>, nullptr, query_ref},
      {"cpu", Backend::cpu, always<QueryArgs>, nullptr, query_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, nullptr, query_sm80},
#endif
  };
  return all;
}
}  // namespace fathom::ops
