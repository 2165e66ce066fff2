#include <cstring>

#include "ops/cpu/scratch.h"
#include "ops/embed/embed.h"

namespace fathom::ops {

void embed_cpu(const EmbedArgs& a, const Launch&) {
  const int64_t copies = a.streams.size[1], d = a.streams.size[2];
  cpu::split(a.ids.size[0], 1, static_cast<double>(a.streams.count()), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t k = 0; k < copies; ++k)
        std::memcpy(a.streams[t][k].data, a.table[a.ids(t)].data, static_cast<size_t>(d) * sizeof(bf16));
  });
}

}  // namespace fathom::ops
