// The variants of residual_mix:
//   sm80       any number of tokens, a token's bits the same in every batch
//   sm90_fast  sums of many tokens by tensor cores; other last bits than those of few tokens, which go as in sm80
// sm80 wants rows that begin at multiples of 16 bytes, post and comb dense in each token.
// Where y is given, streams, post and comb are read before the previous kernel of the stream has ended: it must not
// write them.
#include "ops/residual_mix/end_params.h"
#include "ops/residual_mix/residual_mix.h"

namespace fathom::ops {

void residual_mix_ref(const ResidualMixArgs& a, const Launch&);
void residual_mix_cpu(const ResidualMixArgs& a, const Launch& l);
bool residual_mix_cpu_can_run(const ResidualMixArgs& a, const DeviceInfo&);

namespace {
bool ref_can_run(const ResidualMixArgs& a, const DeviceInfo&) {
  return !a.sums.data;
}
}  // namespace

#ifdef FATHOM_HAVE_CUDA
size_t residual_mix_sm80_workspace(const ResidualMixArgs& a, const DeviceInfo&);
void residual_mix_sm80(const ResidualMixArgs& a, const Launch& l);
void residual_mix_sm90_fast(const ResidualMixArgs& a, const Launch& l);

namespace {

bool sm80_can_run(const ResidualMixArgs& a, const DeviceInfo& d) {
  constexpr int64_t kMostChannels = 8192;
  const auto dense = [](int64_t post, const View<const float, 3>& comb) {
    return post % 4 == 0 && comb.stride[0] % 4 == 0 && comb.stride[1] == kStreams;
  };
  const int64_t channels = a.streams.size[2];
  bool good = d.backend == Backend::cuda && d.compute_capability >= 80 && a.streams.size[1] == kStreams &&
              channels % 128 == 0 && channels <= kMostChannels && a.streams.stride[0] % 8 == 0 &&
              a.streams.stride[1] % 8 == 0;
  if (a.y.data) good = good && dense(a.post.stride[0], a.comb);
  if (a.sums.data)
    good = good && a.fn.data && !a.y.data && a.streams.size[0] <= kEndTokens &&
           a.sums.size[1] == channels / kSumChannels && a.sums.stride[0] == a.sums.size[1] * kSumPitch;
  if (a.fn.data)
    good = good && dense(a.next_post.stride[0], a.next_comb) && a.x.stride[0] % 8 == 0 && a.x_codes.stride[0] % 8 == 0;
  return good;
}

bool sm90_fast_can_run(const ResidualMixArgs& a, const DeviceInfo& d) {
  return sm80_can_run(a, d) && d.compute_capability >= 90 && a.y.stride[0] % 4 == 0 && a.fn.stride[0] % 4 == 0;
}

}  // namespace
#endif

Variants<ResidualMixArgs> residual_mix_variants() {
  static constexpr Variant<ResidualMixArgs> all[] = {
      {"ref", Backend::cpu, ref_can_run, nullptr, residual_mix_ref},
      {"cpu", Backend::cpu, residual_mix_cpu_can_run, nullptr, residual_mix_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, residual_mix_sm80_workspace, residual_mix_sm80},
      {"sm90_fast", Backend::cuda, sm90_fast_can_run, residual_mix_sm80_workspace, residual_mix_sm90_fast},
#endif
  };
  return all;
}
}  // namespace fathom::ops
