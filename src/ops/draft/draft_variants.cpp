#include "ops/draft/draft.h"

namespace fathom::ops {

void stream_mean_ref(const StreamMeanArgs& a, const Launch&);
void stream_mean_cpu(const StreamMeanArgs& a, const Launch& l);
bool stream_mean_cpu_can_run(const StreamMeanArgs& a, const DeviceInfo&);

Variants<StreamMeanArgs> stream_mean_variants() {
  static constexpr Variant<StreamMeanArgs> all[] = {
      {"ref", Backend::cpu, always<StreamMeanArgs>, nullptr, stream_mean_ref},
      {"cpu", Backend::cpu, stream_mean_cpu_can_run, nullptr, stream_mean_cpu},
  };
  return all;
}

void markov_ref(const MarkovArgs& a, const Launch&);
void markov_cpu(const MarkovArgs& a, const Launch& l);
size_t markov_cpu_workspace(const MarkovArgs& a, const DeviceInfo&);

Variants<MarkovArgs> markov_variants() {
  static constexpr Variant<MarkovArgs> all[] = {
      {"ref", Backend::cpu, always<MarkovArgs>, nullptr, markov_ref},
      {"cpu", Backend::cpu, always<MarkovArgs>, markov_cpu_workspace, markov_cpu},
  };
  return all;
}
}  // namespace fathom::ops
