#include "lab/cases/cases.h"

namespace fathom::lab {

const std::vector<OpCases>& all_ops() {
  static const std::vector<OpCases> ops = {
      embed_cases(),          residual_mix_cases(),    quantize_cases(),     linear_fp8_cases(),
      linear_bf16_cases(),    linear_f32_cases(),      query_cases(),        window_write_cases(),
      compress_cases(),       index_query_cases(),     index_select_cases(), sparse_attention_cases(),
      output_project_cases(), output_products_cases(), route_cases(),        experts_cases(),
      head_cases(),           stream_mean_cases(),     stream_join_cases(),  markov_cases(),
      choose_cases(),
  };
  return ops;
}

}  // namespace fathom::lab
