// The generators, one file for each folder of src/ops/.
#pragma once

#include "lab/case.h"

namespace fathom::lab {

OpCases embed_cases();
OpCases residual_mix_cases();
OpCases quantize_cases();
OpCases linear_fp8_cases();
OpCases linear_bf16_cases();
OpCases linear_f32_cases();
OpCases query_cases();
OpCases window_write_cases();
OpCases compress_cases();
OpCases index_query_cases();
OpCases index_select_cases();
OpCases sparse_attention_cases();
OpCases output_project_cases();
OpCases output_products_cases();
OpCases route_cases();
OpCases experts_cases();
OpCases head_cases();
OpCases stream_mean_cases();
OpCases stream_join_cases();
OpCases markov_cases();
OpCases choose_cases();

}  // namespace fathom::lab
