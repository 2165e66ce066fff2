#include "ops/ops.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"

namespace fathom::ops {
namespace {

using Names = std::vector<std::string_view>;

/// The first of `names` that the op has.
template <typename Args>
void pick(const Variant<Args>*& slot, Variants<Args> all, const Names& names, const char* op) {
  for (size_t i = 0; i < names.size() && !slot; ++i) slot = find_variant(all, names[i]);
  if (!slot) throw std::invalid_argument("op " + std::string(op) + " has no variant called " + std::string(names[0]));
}

/// `fast`: of the ops that have variants whose last bits depend on the batch.
OpTable pick_all(const Names& names, const Names& attention, const Names& fast) {
  OpTable t;
  pick(t.embed, embed_variants(), names, "embed");
  pick(t.residual_mix, residual_mix_variants(), fast, "residual_mix");
  pick(t.linear_fp8, linear_fp8_variants(), fast, "linear_fp8");
  pick(t.linear_bf16, linear_bf16_variants(), names, "linear_bf16");
  pick(t.linear_f32, linear_f32_variants(), names, "linear_f32");
  pick(t.quantize, quantize_variants(), names, "quantize");
  pick(t.query, query_variants(), names, "query");
  pick(t.window_write, window_write_variants(), names, "window_write");
  pick(t.compress, compress_variants(), names, "compress");
  pick(t.index_query, index_query_variants(), names, "index_query");
  pick(t.index_select, index_select_variants(), names, "index_select");
  pick(t.sparse_attention, sparse_attention_variants(), attention, "sparse_attention");
  pick(t.output_project, output_project_variants(), names, "output_project");
  pick(t.route, route_variants(), names, "route");
  pick(t.experts, experts_variants(), fast, "experts");
  pick(t.head, head_variants(), names, "head");
  pick(t.choose, choose_variants(), names, "choose");
  pick(t.stream_mean, stream_mean_variants(), names, "stream_mean");
  pick(t.stream_join, stream_join_variants(), names, "stream_join");
  pick(t.markov, markov_variants(), names, "markov");
  t.attention_inputs = find_variant(attention_inputs_variants(), names.back());
  t.compress_both = find_variant(compress_both_variants(), names.back());
  return t;
}

}  // namespace

OpTable op_table(std::string_view name) {
  return pick_all({name}, {name}, {name});
}

OpTable op_table(std::string_view name, const DeviceInfo& device, bool fast) {
  if ((name == "cuda") != (device.backend == Backend::cuda))
    fail("operations {} do not go with a model on {}: use those of the device", name,
         device.backend == Backend::cuda ? "a GPU" : "the processor");
  if (name != "cuda") return op_table(name);
  Names names;  // warpgroup products exist on 9.0 alone
  if (device.compute_capability == 90) names.push_back("sm90");
  if (device.compute_capability >= 89) names.push_back("sm89");
  names.push_back("sm80");
  const auto with_products = [&](OpTable t, std::string_view products) {
    t.input_products = find_variant(input_products_variants(), products);
    t.query_products = find_variant(query_products_variants(), names.front());
    t.output_products = find_variant(output_products_variants(), products);
    return t;
  };
  if (!fast) return with_products(pick_all(names, {"exact"}, names), names.front());
  Names fastest = names;
  if (device.compute_capability == 90) fastest.insert(fastest.begin(), "sm90_fast");
  return with_products(pick_all(names, names, fastest), fastest.front());
}

}  // namespace fathom::ops
