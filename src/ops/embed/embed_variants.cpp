#include "ops/embed/embed.h"

namespace fathom::ops {

void embed_ref(const EmbedArgs& a, const Launch&);

Variants<EmbedArgs> embed_variants() {
  static constexpr Variant<EmbedArgs> all[] = {
      {"ref", Backend::cpu, always<EmbedArgs>, nullptr, embed_ref},
  };
  return all;
}
}  // namespace fathom::ops
