#include <cmath>

#include "ops/choose/choose.h"

namespace fathom::ops {

void choose_ref(const ChooseArgs& a, const Launch&) {
  for (int64_t r = 0; r < a.logits.size[0]; ++r) {
    int32_t best = 0;
    bool finite = true;
    for (int64_t i = 0; i < a.logits.size[1]; ++i) {
      finite = finite && std::isfinite(a.logits(r, i));
      if (a.logits(r, i) > a.logits(r, best)) best = static_cast<int32_t>(i);
    }
    a.token(r) = finite ? best : -1;
  }
}

}  // namespace fathom::ops
