#include <algorithm>

#include "ops/embed/embed.h"

namespace fathom::ops {

void embed_ref(const EmbedArgs& a, const Launch&) {
  for (int64_t t = 0; t < a.ids.size[0]; ++t)
    for (int64_t k = 0; k < a.streams.size[1]; ++k)
      for (int64_t i = 0; i < a.streams.size[2]; ++i) a.streams(t, k, i) = a.table(a.ids(t), i);
}

}  // namespace fathom::ops
