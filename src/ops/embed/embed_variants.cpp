// The variants of embed. sm80 wants rows that begin at multiples of 16 bytes.
#include "ops/embed/embed.h"

namespace fathom::ops {

void embed_ref(const EmbedArgs& a, const Launch&);
void embed_cpu(const EmbedArgs& a, const Launch& l);

#ifdef FATHOM_HAVE_CUDA
void embed_sm80(const EmbedArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const EmbedArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.streams.size[2] % 8 == 0 &&
         a.table.stride[0] % 8 == 0 && a.streams.stride[0] % 8 == 0 && a.streams.stride[1] % 8 == 0 &&
         a.ids.size[0] < 65536;
}

}  // namespace
#endif

Variants<EmbedArgs> embed_variants() {
  static constexpr Variant<EmbedArgs> all[] = {
      {"ref", Backend::cpu, always<EmbedArgs>, nullptr, embed_ref},
      {"cpu", Backend::cpu, always<EmbedArgs>, nullptr, embed_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, nullptr, embed_sm80},
#endif
  };
  return all;
}
}  // namespace fathom::ops
