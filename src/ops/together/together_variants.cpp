// sm80 takes what the variants of that name of the single operations take. Positions and window slots are read before
// the previous kernel of the stream has ended: it must not write them.
#include "ops/together/outputs_plan.h"
#include "ops/together/products_plan.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
void attention_inputs_sm80(const AttentionInputsArgs& a, const Launch& l);
void compress_both_sm80(const CompressBothArgs& a, const Launch& l);
bool compress_fits_one_launch(const CompressArgs& a);
void input_products_sm90(const InputProductsArgs& a, const Launch& l);
void input_products_sm90_fast(const InputProductsArgs& a, const Launch& l);
void query_products_sm90(const QueryProductsArgs& a, const Launch& l);
void output_products_sm90_fast(const OutputProductsArgs& a, const Launch& l);

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
template <typename Args>
bool product_can_run(Variants<Args> all, const Args& a, const DeviceInfo& d) {
  return find_variant(all, "sm90")->can_run(a, d);
}
template <bool kExact>
bool products_can_run(const InputProductsArgs& a, const DeviceInfo& d) {
  return product_can_run(linear_fp8_variants(), a.latents, d) &&
         product_can_run(linear_f32_variants(), a.compressor, d) &&
         (!a.weights.w.data || product_can_run(linear_bf16_variants(), a.weights, d)) &&
         together::lay_out(a, d, kExact).plan.fits;
}
/// Entries read rows of the ring that their segment's tokens do not overwrite: as compress_fits_one_launch(), for 128
/// too.
bool fits_one_launch(const CompressArgs& a) {
  const int64_t longest = a.k.size[0];  // segments may be empty
  return longest + (a.ratio == 4 ? 6 : a.ratio - 2) < a.state_k.size[1];
}
bool queries_can_run(const QueryProductsArgs& a, const DeviceInfo& d) {
  const bool index = a.index.k.data != nullptr;
  return product_can_run(linear_fp8_variants(), a.queries, d) && runs_alone(compress_variants(), a.main, d) &&
         fits_one_launch(a.main) &&
         (!index || (a.main.ratio == 4 && runs_alone(compress_variants(), a.index, d) && fits_one_launch(a.index))) &&
         together::lay_out(a, d).fits;
}

bool outputs_can_run(const OutputProductsArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && together::lay_out(a, d).fits;
}
size_t outputs_workspace(const OutputProductsArgs&, const DeviceInfo&) {
  return sizeof(moe::Gate);
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

Variants<InputProductsArgs> input_products_variants() {
#ifdef FATHOM_HAVE_CUDA
  static constexpr Variant<InputProductsArgs> all[] = {
      {"sm90", Backend::cuda, products_can_run<true>, nullptr, input_products_sm90},
      {"sm90_fast", Backend::cuda, products_can_run<false>, nullptr, input_products_sm90_fast},
  };
  return all;
#else
  return {};
#endif
}

Variants<QueryProductsArgs> query_products_variants() {
#ifdef FATHOM_HAVE_CUDA
  static constexpr Variant<QueryProductsArgs> all[] = {
      {"sm90", Backend::cuda, queries_can_run, nullptr, query_products_sm90},
  };
  return all;
#else
  return {};
#endif
}

Variants<OutputProductsArgs> output_products_variants() {
#ifdef FATHOM_HAVE_CUDA
  static constexpr Variant<OutputProductsArgs> all[] = {
      {"sm90_fast", Backend::cuda, outputs_can_run, outputs_workspace, output_products_sm90_fast},
  };
  return all;
#else
  return {};
#endif
}

}  // namespace fathom::ops
