#include "ops/draft/draft.h"

namespace fathom::ops {

void stream_mean_ref(const StreamMeanArgs& a, const Launch&);

Variants<StreamMeanArgs> stream_mean_variants() {
  static constexpr Variant<StreamMeanArgs> all[] = {
      {"ref", Backend::cpu, always<StreamMeanArgs>, nullptr, stream_mean_ref},
  };
  return all;
}

void markov_ref(const MarkovArgs& a, const Launch&);

Variants<MarkovArgs> markov_variants() {
  static constexpr Variant<MarkovArgs> all[] = {
      {"ref", Backend::cpu, always<MarkovArgs>, nullptr, markov_ref},
  };
  return all;
}
}  // namespace fathom::ops
