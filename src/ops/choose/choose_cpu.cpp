#include <algorithm>
#include <cmath>

#include "ops/choose/draw.h"

namespace fathom::ops {

void choose_cpu(const ChooseArgs& a, const Launch&) {
  TokenDraw draw;
  for (int64_t r = 0; r < a.logits.size[0]; ++r) {
    const std::span<const float> row(a.logits[r].data, static_cast<size_t>(a.logits.size[1]));
    const RowSampling how = a.sampling.data ? a.sampling(r) : RowSampling{};
    if (!std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); }))
      a.token(r) = kRowNotFinite;
    else
      a.token(r) =
          how.scale > 0 ? draw(row, how) : static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
}

}  // namespace fathom::ops
