// Token ids -> embedding rows, copied into the four residual streams. Spec 2.1.
#pragma once

#include "ops/op.h"

namespace fathom::ops {

struct EmbedArgs {
  View<const bf16, 2> table;   // [V, d]
  View<const int32_t, 1> ids;  // [T], each in [0, V)
  View<bf16, 3> streams;       // out [T, 4, d]
};

Variants<EmbedArgs> embed_variants();

}  // namespace fathom::ops
