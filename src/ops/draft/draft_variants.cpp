#include "ops/draft/draft.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
bool stream_mean_sm80_can_run(const StreamMeanArgs& a, const DeviceInfo& d);
void stream_mean_sm80(const StreamMeanArgs& a, const Launch& l);
bool stream_join_sm80_can_run(const StreamJoinArgs& a, const DeviceInfo& d);
void stream_join_sm80(const StreamJoinArgs& a, const Launch& l);
bool markov_sm80_can_run(const MarkovArgs& a, const DeviceInfo& d);
size_t markov_sm80_workspace(const MarkovArgs& a, const DeviceInfo&);
void markov_sm80(const MarkovArgs& a, const Launch& l);
#endif

void stream_mean_ref(const StreamMeanArgs& a, const Launch&);
void stream_mean_cpu(const StreamMeanArgs& a, const Launch& l);
bool stream_mean_cpu_can_run(const StreamMeanArgs& a, const DeviceInfo&);

Variants<StreamMeanArgs> stream_mean_variants() {
  static constexpr Variant<StreamMeanArgs> all[] = {
      {"ref", Backend::cpu, always<StreamMeanArgs>, nullptr, stream_mean_ref},
      {"cpu", Backend::cpu, stream_mean_cpu_can_run, nullptr, stream_mean_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, stream_mean_sm80_can_run, nullptr, stream_mean_sm80},
#endif
  };
  return all;
}

void stream_join_ref(const StreamJoinArgs& a, const Launch&);
void stream_join_cpu(const StreamJoinArgs& a, const Launch& l);
bool stream_join_cpu_can_run(const StreamJoinArgs& a, const DeviceInfo&);

Variants<StreamJoinArgs> stream_join_variants() {
  static constexpr Variant<StreamJoinArgs> all[] = {
      {"ref", Backend::cpu, always<StreamJoinArgs>, nullptr, stream_join_ref},
      {"cpu", Backend::cpu, stream_join_cpu_can_run, nullptr, stream_join_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, stream_join_sm80_can_run, nullptr, stream_join_sm80},
#endif
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
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, markov_sm80_can_run, markov_sm80_workspace, markov_sm80},
#endif
  };
  return all;
}
}  // namespace fathom::ops
