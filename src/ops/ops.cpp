#include "ops/ops.h"

#include <stdexcept>
#include <string>

namespace fathom::ops {
namespace {

template <typename Args>
void pick(const Variant<Args>*& slot, Variants<Args> all, std::string_view name, const char* op) {
  slot = find_variant(all, name);
  if (!slot) throw std::invalid_argument("op " + std::string(op) + " has no variant called " + std::string(name));
}

}  // namespace

OpTable op_table(std::string_view name) {
  OpTable t;
  pick(t.embed, embed_variants(), name, "embed");
  pick(t.residual_mix, residual_mix_variants(), name, "residual_mix");
  pick(t.linear_fp8, linear_fp8_variants(), name, "linear_fp8");
  pick(t.linear_bf16, linear_bf16_variants(), name, "linear_bf16");
  pick(t.linear_f32, linear_f32_variants(), name, "linear_f32");
  pick(t.quantize, quantize_variants(), name, "quantize");
  pick(t.query, query_variants(), name, "query");
  pick(t.window_write, window_write_variants(), name, "window_write");
  pick(t.compress, compress_variants(), name, "compress");
  pick(t.index_query, index_query_variants(), name, "index_query");
  pick(t.index_select, index_select_variants(), name, "index_select");
  pick(t.sparse_attention, sparse_attention_variants(), name, "sparse_attention");
  pick(t.output_project, output_project_variants(), name, "output_project");
  pick(t.route, route_variants(), name, "route");
  pick(t.experts, experts_variants(), name, "experts");
  pick(t.head, head_variants(), name, "head");
  pick(t.stream_mean, stream_mean_variants(), name, "stream_mean");
  pick(t.markov, markov_variants(), name, "markov");
  return t;
}

}  // namespace fathom::ops
