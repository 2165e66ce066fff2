#include "ops/embed/embed.h"

namespace fathom::ops {

void embed_ref(const EmbedArgs& a, const Launch&);
void embed_cpu(const EmbedArgs& a, const Launch& l);

Variants<EmbedArgs> embed_variants() {
  static constexpr Variant<EmbedArgs> all[] = {
      {"ref", Backend::cpu, always<EmbedArgs>, nullptr, embed_ref},
      {"cpu", Backend::cpu, always<EmbedArgs>, nullptr, embed_cpu},
  };
  return all;
}
}  // namespace fathom::ops
