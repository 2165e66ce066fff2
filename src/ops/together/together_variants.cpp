// sm80 takes what the variants of that name of the single operations take. Positions and window slots are read before
// the previous kernel of the stream has ended: it must not write them.
#include "ops/together/together.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
void attention_inputs_sm80(const AttentionInputsArgs& a, const Launch& l);
void compress_both_sm80(const CompressBothArgs& a, const Launch& l);
bool compress_fits_one_launch(const CompressArgs& a);

namespace {

template <typename Args>
bool runs_alone(Variants<Args> all, const Args& a, const DeviceInfo& d) {
  return find_variant(all, "sm80")->can_run(a, d);
}

bool inputs_can_run(const AttentionInputsArgs& a, const DeviceInfo& d) {
  const int64_t tokens = a.query.q.size[0];
  return runs_alone(query_variants(), a.query, d) && runs_alone(window_write_variants(), a.window, d) &&
         a.window.kv.size[0] == tokens &&
         (!a.index.q.data || (a.index.q.size[0] == tokens && runs_alone(index_query_variants(), a.index, d)));
}
bool compress_can_run(const CompressBothArgs& a, const DeviceInfo& d) {
  return runs_alone(compress_variants(), a.main, d) && runs_alone(compress_variants(), a.index, d) &&
         compress_fits_one_launch(a.main) && compress_fits_one_launch(a.index);
}

}  // namespace
#endif

Variants<AttentionInputsArgs> attention_inputs_variants() {
#ifdef FATHOM_HAVE_CUDA
  static constexpr Variant<AttentionInputsArgs> all[] = {
      {"sm80", Backend::cuda, inputs_can_run, nullptr, attention_inputs_sm80},
  };
  return all;
#else
  return {};
#endif
}

Variants<CompressBothArgs> compress_both_variants() {
#ifdef FATHOM_HAVE_CUDA
  static constexpr Variant<CompressBothArgs> all[] = {
      {"sm80", Backend::cuda, compress_can_run, nullptr, compress_both_sm80},
  };
  return all;
#else
  return {};
#endif
}

}  // namespace fathom::ops
